"use strict";
/* Small drawings: axes, curves, marks. Colours come from the style sheet by class. */
const Plot = (() => {
  const SPACE = { left: 46, right: 12, top: 10, bottom: 40 };
  const HEIGHT = 250;

  function node(parent, name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  function linearTicks(low, high) {
    const rough = (high - low) / 5;
    const ten = Math.pow(10, Math.floor(Math.log10(rough)));
    const width = [1, 2, 2.5, 5, 10].find((k) => k * ten >= rough) * ten;
    const ticks = [];
    for (let k = Math.ceil(low / width - 1e-9); k * width <= high * (1 + 1e-9) + 1e-12; k++) {
      ticks.push({ at: k * width, text: String(Number((k * width).toPrecision(6))).replace("-", "−") });
    }
    return ticks;
  }

  function logTicks(low, high) {
    const [a, b] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const every = Math.max(1, Math.ceil((b - a) / 6));
    const ticks = [];
    for (let k = a; k <= b; k++) {
      const text = k === 0 ? "1" : k === 1 ? "10" : `10${Numbers.raised(k)}`;
      if ((k - a) % every === 0) ticks.push({ at: Math.pow(10, k), text });
    }
    return ticks;
  }

  function scale(axis, from, to) {
    const f = axis.log ? Math.log10 : (v) => v;
    const [a, b] = axis.range.map(f);
    return (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  }

  const inside = (v, [low, high]) => Number.isFinite(v) && v >= low && v <= high;
  const place = (v) => v.toFixed(2);

  /* A path through the points; it breaks where one has no value, and is held at the frame where one leaves it. */
  function pathOf(points, x, y, yRange) {
    let d = "";
    let pen = false;
    for (const [a, b] of points) {
      if (!Number.isFinite(b)) {
        pen = false;
        continue;
      }
      const held = Math.min(Math.max(b, yRange[0]), yRange[1]);
      d += `${pen ? "L" : "M"}${place(x(a))} ${place(y(held))}`;
      pen = true;
    }
    return d;
  }

  function axes(svg, given, x, y, width) {
    const bottom = HEIGHT - SPACE.bottom;
    const right = width - SPACE.right;
    for (const tick of given.y.ticks || (given.y.log ? logTicks : linearTicks)(...given.y.range)) {
      node(svg, "line", { class: "grid", x1: SPACE.left, x2: right, y1: place(y(tick.at)), y2: place(y(tick.at)) });
      node(svg, "text", { class: "tick", x: SPACE.left - 6, y: place(y(tick.at) + 4), "text-anchor": "end" }, tick.text);
    }
    for (const tick of given.x.ticks || (given.x.log ? logTicks : linearTicks)(...given.x.range)) {
      node(svg, "line", { class: "axis", x1: place(x(tick.at)), x2: place(x(tick.at)), y1: bottom, y2: bottom + 4 });
      node(svg, "text", { class: "tick", x: place(x(tick.at)), y: bottom + 17, "text-anchor": "middle" }, tick.text);
    }
    node(svg, "path", { class: "axis", d: `M${SPACE.left} ${SPACE.top}V${bottom}H${right}` });
    const middle = (SPACE.left + right) / 2;
    node(svg, "text", { class: "name", x: middle, y: HEIGHT - 6, "text-anchor": "middle" }, given.x.name);
  }

  /* Read all widths before anything is drawn: in between, each would lay the page out again. */
  const widths = new Map();
  function measure() {
    for (const svg of document.querySelectorAll("svg.plot")) {
      widths.set(svg, Math.max(240, Math.round(svg.parentElement.clientWidth) || 480));
    }
  }

  /* Draw curves, marks and a rug of values into an svg element, as wide as its place allows. */
  function draw(svg, given) {
    const width = widths.get(svg);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("height", String(HEIGHT));
    svg.setAttribute("aria-label", given.words);
    const x = scale(given.x, SPACE.left, width - SPACE.right);
    const y = scale(given.y, HEIGHT - SPACE.bottom, SPACE.top);
    axes(svg, given, x, y, width);
    if (given.rug) {
      const d = given.rug.filter((v) => inside(v, given.x.range)).map((v) => `M${place(x(v))} ${HEIGHT - SPACE.bottom}v-9`);
      node(svg, "path", { class: "rug", d: d.join("") });
    }
    for (const one of given.curves) {
      node(svg, "path", { class: `curve ${one.look}`, d: pathOf(one.points, x, y, given.y.range) });
    }
    shown.set(svg, { given, x, guide: node(svg, "path", { class: "guide", d: "" }) });
    for (const one of given.marks || []) {
      if (!inside(one.at[0], given.x.range) || !inside(one.at[1], given.y.range)) continue;
      const [cx, cy] = [x(one.at[0]), y(one.at[1])];
      const square = { x: place(cx - 4.5), y: place(cy - 4.5), width: 9, height: 9 };
      if (one.square) node(svg, "rect", { class: `mark ${one.look}`, ...square });
      else node(svg, "circle", { class: `mark ${one.look}`, cx: place(cx), cy: place(cy), r: 5 });
    }
  }

  /* Under the pointer: a line, and the values of the curves at their point nearest to it. */
  const shown = new Map();
  function readout(svg, event) {
    const { given, x, guide } = shown.get(svg) || {};
    if (!given) return;
    const at = event ? event.clientX - svg.getBoundingClientRect().left : NaN;
    const near = (points) => points.reduce((best, p) => (Math.abs(x(p[0]) - at) < Math.abs(x(best[0]) - at) ? p : best));
    const named = given.curves.filter((one) => one.name && one.points.length);
    const found = Number.isFinite(at) ? named.map((one) => [one.name, near(one.points)]) : [];
    const words = svg.parentElement.querySelector(".readout");
    const values = found.filter(([, p]) => Number.isFinite(p[1])).map(([name, p]) => `${name} = ${Numbers.text(p[1])}`);
    words.textContent = found.length ? [`${given.x.symbol} = ${Numbers.text(found[0][1][0])}`, ...values].join(", ") : "";
    guide.setAttribute("d", found.length ? `M${place(x(found[0][1][0]))} ${SPACE.top}V${HEIGHT - SPACE.bottom}` : "");
  }

  /* Draw lengths as bars with their names above them. */
  function bars(svg, rows, words) {
    const width = widths.get(svg);
    const most = Math.max(...rows.map((row) => row.value), 1e-300);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${rows.length * 40}`);
    svg.setAttribute("height", String(rows.length * 40));
    svg.setAttribute("aria-label", words);
    rows.forEach((row, j) => {
      node(svg, "text", { class: "name", x: 0, y: 40 * j + 13 }, row.name);
      const length = Math.max(row.value > 0 ? 1 : 0, (row.value / most) * width);
      node(svg, "rect", { class: `bar ${row.look}`, x: 0, y: 40 * j + 19, width: place(length), height: 11 });
    });
  }

  return { measure, draw, bars, readout };
})();
