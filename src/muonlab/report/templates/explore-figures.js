"use strict";
/* The six drawings of the explorer, from the state of the controls and the numbers found for it. */
const Figures = (() => {
  function cost(at) {
    const counts = Numbers.flops(at.poly, at.q, at.m, at.n);
    const names = { svd: "SVD, paper's count", horner: "Horner, paper's count", standard: "standard", gram: "Gram space" };
    const rows = Object.entries(names).map(([key, name]) => {
      const value = Number(counts[key]);
      return { name: `${name}: ${Numbers.text(value)}`, look: key === "svd" ? "c2" : "c1", value };
    });
    Plot.bars(document.getElementById("plot-cost"), rows, `Operations. ${rows.map((row) => row.name).join("; ")}.`);
  }

  const grid = (n, f) => Array.from({ length: n + 1 }, (_, j) => f(j / n));
  const most = (curves) => Math.max(...curves.flatMap((one) => one.points.map((p) => p[1])).filter(Number.isFinite));
  const least = (curves) => Math.min(...curves.flatMap((one) => one.points.map((p) => p[1])).filter(Number.isFinite));

  function maps(at) {
    const used = at.poly.steps.slice(0, Math.max(1, Math.min(at.q, at.poly.steps.length)));
    const look = (j) => (j ? "c1 faint" : "c1");
    const nth = (j) => (used.length > 1 ? ` of step ${j + 1}` : "");
    for (const key of document.querySelectorAll(".keys .faint")) key.closest("li").hidden = used.length < 2;
    const curvesOf = (name, map) =>
      used.map((p, j) => ({ look: look(j), name: name + nth(j), points: grid(200, (t) => [t, map(p, t)]) })).reverse();
    const tau = curvesOf("τ", Numbers.tau);
    const identity = { look: "c3 dotted", points: [[0, 0], [1, 1]] };
    Plot.draw(document.getElementById("plot-tau"), {
      x: { range: [0, 1], name: "eigenvalue λ of XXᵀ", symbol: "λ" },
      y: { range: [0, Math.max(1, 1.05 * most(tau))] },
      curves: [identity, ...tau],
      words: `τ on [0, 1]; it ${at.poly.taylor ? "rises to 1" : `reaches ${Numbers.text(most(tau))}`}.`,
    });
    const phi = curvesOf("φ", Numbers.phi);
    const k = at.poly.kappa + 1;
    const power = { look: "c2 dashed", name: `u${Numbers.raised(k)}`, points: grid(200, (t) => [t, Math.pow(t, k)]) };
    Plot.draw(document.getElementById("plot-phi"), {
      x: { range: [0, 1], name: "residual u", symbol: "u" },
      y: { range: [Math.min(0, 1.05 * least(phi)), 1] },
      curves: [power, ...phi],
      words: `φ on [0, 1] beside u to the power ${k}.`,
    });
  }

  function spread(at, found) {
    const ends = [found.scaled[found.scaled.length - 1], found.scaled[0]].map(Numbers.text);
    const low = Math.pow(10, Math.floor(Math.log10(Math.min(0.01, 0.9 * found.scaled[found.scaled.length - 1]))));
    const points = grid(700, (t) => Math.pow(low, 1 - t)).map((s) => [s, Numbers.composed(at.poly, at.q, s)]);
    const curves = [{ look: "c3 dotted", points: [[low, 1], [1, 1]] }, { look: "c1", name: "F", points }];
    Plot.draw(document.getElementById("plot-F"), {
      x: { range: [low, 1], log: true, name: "singular value s of the scaled matrix", symbol: "s" },
      y: { range: [Math.min(0, least(curves)), 1.05 * most(curves)] },
      curves,
      rug: found.scaled,
      words: `F after ${at.q} steps, and the ${at.spectrum.rank} singular values of the matrix, from ${ends.join(" to ")}.`,
    });
  }

  function factors(data, at) {
    const all = grid(data.most_steps, (t) => Numbers.respond(at.poly, Math.round(t * data.most_steps), at.sigma, at.alpha));
    const series = (look, name, f) => ({ look, name, points: all.map((one, q) => [q, f(one) ?? NaN]) });
    const curves = [
      series("c2 dashed", "χ bound", (one) => one.bound && one.bound.chi),
      series("c2", "χ", (one) => one.exact.chi),
      series("c1", "1/a", (one) => (one.alignment > 0 ? 1 / one.alignment : null)),
    ];
    const ticks = all.map((_, q) => ({ at: q, text: String(q) }));
    const ends = [curves[2].points[0][1], curves[2].points[data.most_steps][1]].map(Numbers.text);
    Plot.draw(document.getElementById("plot-factor"), {
      x: { range: [-0.3, data.most_steps + 0.3], name: "steps q", symbol: "q", ticks },
      y: { range: [0.9, Math.max(10, 1.3 * most(curves))], log: true },
      curves,
      marks: curves.map((one) => ({ at: one.points[at.q], look: one.look.split(" ")[0] })),
      words: `Factors for 0 to ${data.most_steps} steps; 1/a goes from ${ends.join(" to ")}.`,
    });
  }

  function floor(data, at, found) {
    const { floors } = found;
    const value = floors && floors.values[at.rank];
    const curve = floors ? data.ranks.map((r, j) => [r, floors.values[j]]) : [];
    const marks = [{ at: [at.spectrum.rank, found.alignment], look: "c2", square: true }];
    if (floors) marks.unshift({ at: [data.ranks[at.rank], value], look: "c1" });
    const range = [data.ranks[0] * 0.8, data.ranks[data.ranks.length - 1] * 1.2];
    const ticks = data.ranks.map((r) => ({ at: r, text: String(r) }));
    const said = floors ? `${Numbers.text(value)} at rank ${data.ranks[at.rank]}` : "none";
    Plot.draw(document.getElementById("plot-floor"), {
      x: { range, log: true, name: "rank r", symbol: "r", ticks },
      y: { range: [0, 1] },
      curves: [{ points: curve, look: "c1", name: "a, at least" }],
      marks,
      words: `Guaranteed alignment: ${said}. This matrix of rank ${at.spectrum.rank}: ${Numbers.text(found.alignment)}.`,
    });
  }

  return {
    draw(data, at, found) {
      floor(data, at, found);
      cost(at);
      maps(at);
      spread(at, found);
      factors(data, at);
    },
  };
})();
