"use strict";
// Values at the pointer, or chosen with the arrow keys. The numbers are in the data block of each figure.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MOST_LINES = 12;
  const MOST_POINTS = 4;  // if every series is a single point
  const scaled = (value, scale) => (scale === "log" ? Math.log10(value) : value);
  const fraction = (value, [low, high], scale) =>
    (scaled(value, scale) - scaled(low, scale)) / (scaled(high, scale) - scaled(low, scale));
  const four = (value) => String(Number(value.toPrecision(4)));
  const place = (value) => (Number.isInteger(value) ? String(value) : four(value));
  const horizontal = (panel, x) => panel.box[0] + fraction(x, panel.x_range, panel.x_scale) * (panel.box[2] - panel.box[0]);
  const vertical = (panel, y) => panel.box[3] - fraction(y, panel.y_range, panel.y_scale) * (panel.box[3] - panel.box[1]);
  const drawable = (value, scale) => Number.isFinite(scaled(value, scale));

  // Index of the position nearest to `at` in the drawing; positions ascend.
  const nearest = (places, at, panel) => {
    let low = 0;
    let high = places.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (horizontal(panel, places[middle]) <= at) low = middle;
      else high = middle;
    }
    const gap = (index) => Math.abs(horizontal(panel, places[index]) - at);
    return gap(high) < gap(low) ? high : low;
  };

  // The values at a position, as text: for every curve the value at its nearest position.
  const reading = (panel, index, pointerY) => {
    const x = panel.places[index];
    const at = horizontal(panel, x);
    let lines = panel.series.map((one) => {
      const i = nearest(one.x, at, panel);
      const elsewhere = one.x[i] === x ? "" : ` (at ${place(one.x[i])})`;
      const value = four(one.y[i]) + (one.std ? ` ± ${four(one.std[i])}` : "") + elsewhere;
      const y = drawable(one.y[i], panel.y_scale) ? vertical(panel, one.y[i]) : null;
      return { label: one.label, colour: one.colour, x: one.x[i], y, value };
    });
    const most = panel.series.every((one) => one.x.length === 1) ? MOST_POINTS : MOST_LINES;
    const more = Math.max(0, lines.length - most);
    if (more) {
      const far = (line) =>
        line.y === null ? Infinity : Math.hypot(horizontal(panel, line.x) - at, line.y - (pointerY ?? line.y));
      const close = new Set([...lines].sort((a, b) => far(a) - far(b)).slice(0, most));
      lines = lines.filter((line) => close.has(line));
    }
    return { at, head: `${panel.x_name || "x"} ${place(x)}`, lines, more: more ? [`and ${more} more`] : [] };
  };

  const element = (name, className, text) => {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  };
  const shape = (name, className, attributes) => {
    const made = document.createElementNS(SVG, name);
    made.setAttribute("class", className);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  const fill = (tip, read) => {
    const rows = read.lines.map((line) => {
      const row = element("p", "row", "");
      const mark = element("span", "swatch", "●");
      mark.setAttribute("aria-hidden", "true");
      mark.style.color = line.colour;
      row.append(mark, element("span", "label", line.label), element("span", "value", line.value));
      return row;
    });
    const [head, ...more] = [read.head, ...read.more].map((text) => element("p", "head", text));
    tip.replaceChildren(head, ...rows, ...more);
  };

  const attach = (figure) => {
    const svg = figure.querySelector(".canvas svg");
    const drawing = figure.querySelector(".drawing");
    const stage = figure.querySelector(".stage");
    const tip = figure.querySelector("[data-tip]");
    const said = figure.querySelector("[data-said]");
    const data = JSON.parse(figure.querySelector("[data-panels]").textContent);
    const placesOf = (panel) => [...new Set(panel.series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const panels = data.map((panel) => ({ ...panel, places: placesOf(panel) })).filter((panel) => panel.places.length);
    if (!panels.length) return;
    // The title of the SVG would be a second tooltip; the label of the canvas has the same text.
    for (const title of svg.querySelectorAll(":scope > title")) title.remove();
    for (const attribute of ["role", "aria-labelledby"]) svg.removeAttribute(attribute);
    svg.setAttribute("aria-hidden", "true");
    drawing.setAttribute("aria-label", `${drawing.getAttribute("aria-label")}. Arrow keys read its values.`);
    const marks = shape("g", "marks", {});
    svg.append(marks);
    let now = null;

    const hide = () => {
      now = null;
      tip.hidden = true;
      marks.replaceChildren();
      said.textContent = "";
    };
    const placeTip = (panel, read) => {
      const matrix = svg.getScreenCTM();
      const frame = stage.getBoundingClientRect();
      const left = new DOMPoint(read.at, panel.box[1]).matrixTransform(matrix);
      const room = frame.width - tip.offsetWidth;
      const beside = left.x - frame.left + 14;
      const x = beside <= room ? beside : left.x - frame.left - 14 - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, x))}px`;
      tip.style.top = `${left.y - frame.top + 6}px`;
    };
    const show = (which, index, pointerY) => {
      const panel = panels[which];
      const read = reading(panel, index, pointerY);
      now = { which, index };
      const [, top, , bottom] = panel.box;
      marks.replaceChildren(
        shape("line", "guide", { x1: read.at, x2: read.at, y1: top, y2: bottom }),
        ...read.lines
          .filter((line) => line.y !== null && line.y >= top - 1 && line.y <= bottom + 1)
          .map((line) => shape("circle", "dot", { cx: horizontal(panel, line.x), cy: line.y, r: 3.5, fill: line.colour || "currentColor" })),
      );
      fill(tip, read);
      tip.hidden = false;
      placeTip(panel, read);
      return [read.head, ...read.lines.map((line) => `${line.label}: ${line.value}`), ...read.more];
    };

    const point = (event) => {
      const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const which = panels.findIndex(({ box }) => x >= box[0] && x <= box[2] && y >= box[1] && y <= box[3]);
      if (which < 0) hide();
      else show(which, nearest(panels[which].places, x, panels[which]), y);
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());

    const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));
    const moves = {
      ArrowRight: ({ which, index }) => [which, index + 1],
      ArrowLeft: ({ which, index }) => [which, index - 1],
      Home: ({ which }) => [which, 0],
      End: ({ which }) => [which, Infinity],
      ArrowDown: ({ which, index }) => [which + 1, index],
      ArrowUp: ({ which, index }) => [which - 1, index],
    };
    const across = (from, to, index) => {
      if (from === to) return clamp(index, panels[to].places.length);
      const x = panels[from].places[clamp(index, panels[from].places.length)];
      return drawable(x, panels[to].x_scale) ? nearest(panels[to].places, horizontal(panels[to], x), panels[to]) : 0;
    };
    drawing.addEventListener("keydown", (event) => {
      if (event.target !== drawing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") hide();
      if (!(event.key in moves)) return;
      event.preventDefault();
      const from = now ?? { which: 0, index: event.key === "ArrowLeft" || event.key === "End" ? Infinity : -1 };
      const [wanted, index] = now || !event.key.startsWith("Arrow") ? moves[event.key](from) : [0, from.index];
      const which = clamp(wanted, panels.length);
      const lines = show(which, across(from.which, which, index));
      said.textContent = (panels.length > 1 ? `Panel ${which + 1} of ${panels.length}. ` : "") + lines.join("; ");
    });
    drawing.addEventListener("blur", hide);
    drawing.addEventListener("scroll", () => now && placeTip(panels[now.which], reading(panels[now.which], now.index)));
  };

  for (const figure of document.querySelectorAll("[data-figure]")) attach(figure);
})();
