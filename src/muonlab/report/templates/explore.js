"use strict";
/* Controls, the state in the address, and what is shown. Words reach the page as text only, never as markup. */
(() => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const byId = (id) => document.getElementById(id);
  const controls = {};
  const START = {
    polynomial: "taylor", kappa: "2", q: "3", spectrum: "gaussian", shape: "768x768", prescale: "frobenius", norm: "1",
    lambda0: "0.001", rank: "768", m: "768", n: "768", ratio: "10", lr_schedule: "cosine", nesterov: "yes",
    beta: "0.9", noise: "0.1",
  };
  const LISTS = {
    lambda0: data.lambdas, rank: data.ranks, norm: data.norms, ratio: data.ratios, beta: data.betas, noise: data.noises,
  };

  /* ---------------------------------------------------------------------------------------------- numbers as text */

  const figure = Numbers.text;
  const short = (x) => figure(x).replace(/\.0+(?=·)/, "").replace(/^1·/, "");
  /* Residuals next to 1 by what is left of it. */
  const residual = (delta, lam) => (lam !== null && lam > 0 && lam < 1e-3 ? `1 − ${short(lam)}` : figure(delta));

  const near = (name, of) => {
    if (of[name] === null || name === "chi") return undefined;
    return residual(of[name], name === "delta" ? of.lam : of.chi && 1 / of.chi);
  };

  function show(name, value, text) {
    const place = document.querySelector(`[data-number="${name}"]`);
    const there = value !== null && value !== undefined && (typeof value === "bigint" || Number.isFinite(value));
    place.dataset.value = there ? String(value) : "";
    place.textContent = there ? text || figure(value) : "not applicable";
    place.classList.toggle("none", !there);
  }
  function because(name, words) {
    const place = document.querySelector(`[data-reason-of="${name}"]`);
    place.hidden = !words;
    place.textContent = words || "";
  }

  /* ------------------------------------------------------------------------------------------------------- state */

  const nearest = (list, x) => {
    const far = list.map((v) => Math.abs(Math.log(v / x)));
    return far.indexOf(Math.min(...far));
  };

  /* Put a text from anywhere into a control: numbers are clamped or snapped, unknown words change nothing. */
  function put(name, text) {
    const control = controls[name];
    if (control.tagName === "SELECT") {
      if ([...control.options].some((option) => option.value === text)) control.value = text;
      return;
    }
    if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?$/i.test(text)) return;
    const x = Number(text);
    if (name in LISTS) {
      if (x > 0) control.value = String(nearest(LISTS[name], Math.min(x, 1e300)));
    } else control.value = String(Math.min(Math.max(Math.round(x), Number(control.min)), Number(control.max)));
  }
  function side(name) {
    const x = Math.round(Number(controls[name].value));
    return x >= 1 && x <= data.largest_side ? x : null;
  }
  const kept = { m: 768, n: 768 };

  function state() {
    for (const name of ["m", "n"]) kept[name] = side(name) || kept[name];
    const index = (name) => Number(controls[name].value);
    const kind = controls.polynomial.value;
    const name = kind === "taylor" ? `taylor${controls.kappa.value}` : kind;
    const [prescale, norm] = [controls.prescale.value, data.norms[index("norm")]];
    const spectrum = data.spectra[`${controls.spectrum.value} ${controls.shape.value}`];
    const frobenius = spectrum.alphas.frobenius * norm;
    return {
      name, kind, prescale, norm, spectrum, frobenius, poly: data.polynomials[name],
      q: index("q"), lambda0: index("lambda0"),
      sigma: prescale === "paper" ? spectrum.values.map((x) => x * norm) : spectrum.values,
      alpha: prescale === "paper" ? Math.max(1, frobenius) : spectrum.alphas[prescale],
      rank: index("rank"), ratio: data.ratios[index("ratio")], m: kept.m, n: kept.n,
      lr_schedule: controls.lr_schedule.value, nesterov: controls.nesterov.value,
      beta: data.betas[index("beta")], noise: data.noises[index("noise")],
    };
  }
  function fragment(at) {
    const now = {
      polynomial: at.kind, kappa: controls.kappa.value, q: at.q, lambda0: data.lambdas[at.lambda0],
      spectrum: controls.spectrum.value, shape: controls.shape.value, prescale: at.prescale, norm: at.norm,
      rank: data.ranks[at.rank], m: at.m, n: at.n, ratio: at.ratio, lr_schedule: at.lr_schedule,
      nesterov: at.nesterov, beta: at.beta, noise: at.noise,
    };
    return new URLSearchParams(Object.entries(now).map(([key, value]) => [key, String(value)])).toString();
  }
  /* Read the view from the address; one that names no control is somebody else's (a jump within the page). */
  function fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!Object.keys(START).some((name) => given.has(name))) return false;
    for (const name of Object.keys(START)) {
      put(name, START[name]);
      if (given.has(name)) put(name, given.get(name));
    }
    if (given.has("shape")) followShape(given);
    return true;
  }
  function followShape(given) {
    const sides = controls.shape.value.split("x");
    ["m", "n"].forEach((name, j) => {
      if (!given || !given.has(name)) controls[name].value = sides[j];
    });
  }

  /* ------------------------------------------------------------------------------------------------- what is shown */

  function label(at) {
    const set = (name, text) => {
      byId(`${name}-value`).textContent = text;
      controls[name].setAttribute("aria-valuetext", text);
    };
    controls.kappa.disabled = at.kind !== "taylor";
    controls.norm.disabled = at.prescale !== "paper";
    set("kappa", String(at.poly.kappa));
    set("q", String(at.q));
    const lam = data.lambdas[at.lambda0];
    set("lambda0", lam < 1e-3 ? `1 − ${short(lam)}` : String(Number((1 - lam).toPrecision(12))));
    set("norm", at.prescale === "paper" ? short(at.norm) : "any");
    set("rank", String(data.ranks[at.rank]));
    set("ratio", `${at.ratio}`);
    set("beta", `${at.beta}`);
    set("noise", `${at.noise}`);
  }

  function notCovered(at) {
    return Numbers.covered(at.poly, at.q) ? "" : `Theorem 2 does not cover this polynomial: ${at.poly.reason}.`;
  }

  function worst(at) {
    const found = Numbers.worst(at.poly, at.q, data.lambdas, at.lambda0);
    for (const name of ["delta", "epsilon", "chi"]) {
      for (const [end, from] of [["", found.exact], ["-bound", found.bound]]) {
        show(name + end, from && from[name], from && near(name, from));
      }
      because(name, Numbers.covered(at.poly, at.q) ? "" : "No bound, for the same reason.");
    }
    const instead = "The exact values are the largest on [√(1 − δ₀), 1] (Definition 3).";
    if (!Numbers.covered(at.poly, at.q)) because("delta", `${notCovered(at)} ${instead}`);
    if (found.exact.chi === null) because("chi", "Theorem 1 does not apply: ε is 1 or more.");
  }

  function matrix(at, found) {
    show("m-chi", found.exact.chi);
    show("m-chi-bound", found.bound && found.bound.chi);
    const beyond = found.exact.chi === null ? " Nor does Theorem 1 apply: ε is 1 or more." : "";
    because("m-chi-bound", notCovered(at) + beyond);
    show("m-delta0", found.delta0, residual(found.delta0, found.lam0));
    show("m-delta", found.exact.delta, near("delta", found.exact));
    show("m-epsilon", found.exact.epsilon, near("epsilon", found.exact));
    show("rho", found.descent);
    show("gain", found.gain);
    show("alignment", found.alignment);
    show("alignment-again", found.alignment);
    show("factor", found.alignment > 0 ? 1 / found.alignment : null);
  }

  function headline(at, found) {
    const chosen = (name) => controls[name].selectedOptions[0].textContent;
    const steps = at.q === 1 ? "step" : "steps";
    const what = at.kind === "taylor" ? `Taylor ${steps}, κ = ${at.poly.kappa}` : `${steps} of ${chosen("polynomial")}`;
    const of = `${chosen("spectrum")}, ${chosen("shape")}`;
    const paper = found.bound ? `The paper charges χ ≤ ${figure(found.bound.chi)}` : "The paper has no guarantee";
    const cost = found.alignment > 0 ? `1/a = ${figure(1 / found.alignment)}` : "no factor: the step need not descend";
    byId("headline").textContent = `${at.q} ${what} · ${of}. ${paper}; the alignment theorem charges ${cost}.`;
  }

  function floorsOf(at) {
    if (at.prescale === "paper" && at.frobenius < 1) return null;
    const power = data.powers[at.prescale];
    const own = data.floors[power][at.name][at.q];
    return { values: own || data.floors[2][at.name][at.q], lent: !own };
  }
  function floor(at, found) {
    const floors = floorsOf(at);
    const norms = `norm ${figure(at.frobenius)} and operator norm ${figure(at.sigma[0])}`;
    const reason = floors ? "" : `Dividing by max{1, ‖M‖} leaves ${norms} as they are.`;
    const place = data.ranks.findIndex((r) => r >= at.spectrum.rank);
    const value = floors && floors.values[at.rank];
    show("floor", value);
    show("floor-factor", value > 0 ? 1 / value : null);
    show("m-floor", floors && floors.values[place]);
    because("floor", reason);
    because("m-floor", reason);
    const other = data.ranks[place] === at.spectrum.rank ? "" : `, the floor that of ${data.ranks[place]}`;
    byId("m-floor-rank").textContent = `Its rank is ${at.spectrum.rank}${other}.`;
    const note = "Here the floor of the Frobenius norm stands in for that of this prescale.";
    byId("floor-note").textContent = floors && floors.lent ? note : "";
  }

  function cost(at) {
    const counts = Numbers.flops(at.poly, at.q, at.m, at.n);
    for (const [name, value] of Object.entries(counts)) show(`flops-${name}`, value);
    const factor = at.q ? Number(counts.svd) / Number(counts.horner) : null;
    show("ratio-of-flops", factor);
    show("ratio-of-times", at.q ? factor * at.ratio : null);
    because("ratio-of-times", at.q ? "" : "No steps take no time: choose q of 1 or more.");
  }

  function wholeRun(at, found) {
    const sums = data.lr_schedules[at.lr_schedule];
    const ahead = at.nesterov === "yes";
    const run = Numbers.run(found.descent, found.gain, sums, data.run_steps, at.beta, at.noise, ahead);
    for (const name of ["total", "eta", "still", "noise", "cost"]) show(`run-${name}`, run[name]);
    because("run-total", run.total === null ? "The step need not descend." : "");
  }

  /* Numbers at once; drawings with the next frame, however many changes came before it. */
  let frame = 0;
  function render() {
    const at = state();
    const found = Numbers.respond(at.poly, at.q, at.sigma, at.alpha);
    label(at);
    headline(at, found);
    matrix(at, found);
    worst(at);
    floor(at, found);
    wholeRun(at, found);
    cost(at);
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      Plot.measure();
      Figures.draw(data, at, { ...found, floors: floorsOf(at) });
    });
    return at;
  }
  /* The address follows when the controls rest: browsers limit how often it may change. */
  let rest = 0;
  function changed() {
    const text = `#${fragment(render())}`;
    clearTimeout(rest);
    rest = setTimeout(() => text !== location.hash && history.replaceState(null, "", text), 200);
  }

  for (const name of Object.keys(START)) {
    controls[name] = byId(name);
    put(name, START[name]);
    controls[name].addEventListener("input", () => {
      if (name === "shape") followShape(null);
      changed();
    });
  }
  for (const name of ["m", "n"]) {
    controls[name].addEventListener("change", () => (controls[name].value = String(kept[name])));
  }
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("reset").addEventListener("click", () => {
    for (const name of Object.keys(START)) put(name, START[name]);
    changed();
  });
  addEventListener("hashchange", () => fromAddress() && changed());
  for (const svg of document.querySelectorAll("figure .canvas > .plot")) {
    for (const kind of ["pointermove", "pointerdown"]) {
      svg.addEventListener(kind, (event) => Plot.readout(svg, event));
    }
    svg.addEventListener("pointerleave", () => Plot.readout(svg, null));
  }
  fromAddress();
  render();
  let width = 0;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    render();
  }).observe(document.querySelector(".results"));
})();
