"use strict";
/* The library's formulas, operation by operation: same order, same choice of variable, so the same digits. */
const Numbers = (() => {
  const horner = (c, x) => {
    let total = c[c.length - 1] + 0 * x;
    for (let k = c.length - 2; k >= 0; k--) total = total * x + c[k];
    return total;
  };
  const tau = (p, lam) => {
    const value = horner(p.u, 1 - lam);
    return lam * value * value;
  };
  const phi = (p, u) => horner(p.phi, u);
  const step = (p, s) => s * horner(p.u, (1 - s) * (1 + s));
  const stepAt = (poly, j) => poly.steps[Math.min(j, poly.steps.length - 1)];

  function composed(poly, q, s) {
    for (let j = 0; j < q; j++) s = step(stepAt(poly, j), s);
    return s;
  }

  /* A residual δ, λ = 1 - δ and s = √λ, each with its digits: δ leads once it is below ½, λ and s before. */
  const ofDelta = (delta) => ({ delta, lam: 1 - delta, s: Math.sqrt(1 - delta) });
  const ofLambda = (lam) => ({ delta: 1 - lam, lam, s: Math.sqrt(lam) });
  const ofSigma = (s) => ({ delta: (1 - s) * (1 + s), lam: s * s, s });

  function after(p, q, at) {
    for (let j = 0; j < q; j++) {
      const delta = phi(p, at.delta);
      if (delta < 0.5) at = ofDelta(delta);
      else {
        const lam = tau(p, at.lam);
        at = { delta: 1 - lam, lam, s: step(p, at.s) };
      }
    }
    return at;
  }

  /* δ_0^((κ+1)^q) without cancellation. */
  function bounded(kappa, q, at) {
    if (at.delta === 0 || q === 0) return at;
    const power = Math.pow(kappa + 1, q);
    const exponent = power * (at.delta < 0.5 ? Math.log(at.delta) : Math.log1p(-at.lam));
    if (exponent === 0) return { delta: 1, lam: 0, s: Math.sqrt(power) * at.s };
    const lam = -Math.expm1(exponent);
    return { delta: Math.exp(exponent), lam, s: Math.sqrt(lam) };
  }

  const errors = (at) => ({ delta: at.delta, lam: at.lam, epsilon: at.delta / (1 + at.s), chi: 1 / at.s });
  const factorOf = (epsilon) => (epsilon !== null && epsilon < 1 ? 1 / (1 - epsilon) : null);
  const covered = (poly, q) => poly.taylor || q === 0;

  /* Theorem 2 from δ_0 alone; other polynomials take what the library found on [√(1-δ_0), 1]. */
  function worst(poly, q, lambdas, index) {
    const at = ofLambda(lambdas[index]);
    if (covered(poly, q)) {
      return { exact: errors(after(poly.steps[0], q, at)), bound: errors(bounded(poly.kappa, q, at)) };
    }
    const [delta, lam, epsilon] = poly.errors[q][index];
    return { exact: { delta, lam, epsilon, chi: factorOf(epsilon) }, bound: null };
  }

  const sum = (values) => values.reduce((total, x) => total + x, 0);

  /* What q steps make of a spectrum. */
  function respond(poly, q, sigma, alpha) {
    const scaled = sigma.map((x) => x / alpha);
    const F = scaled.map((s) => composed(poly, q, s));
    const start = ofSigma(Math.min(1, scaled[scaled.length - 1]));
    let exact, bound = null;
    let start0 = start.delta;
    if (covered(poly, q)) {
      exact = errors(after(poly.steps[0], q, start));
      bound = errors(bounded(poly.kappa, q, start));
    } else {
      const residual = (values) => values.reduce((most, f) => Math.max(most, Math.abs(1 - f * f)), 0);
      const epsilon = F.reduce((most, f) => Math.max(most, Math.abs(f - 1)), 0);
      start0 = residual(scaled);
      const least = F.reduce((low, f) => Math.min(low, f * f), Infinity);
      exact = { delta: residual(F), lam: residual(F) < 1 ? least : null, epsilon, chi: factorOf(epsilon) };
    }
    const descent = sum(F.map((f, i) => f * sigma[i])) / sum(sigma);
    const gain = F.reduce((most, f) => Math.max(most, Math.abs(f)), 0);
    return { delta0: start0, lam0: start.lam, scaled, exact, bound, descent, gain, alignment: descent / gain };
  }

  /* Operation counts as whole numbers of any size (Lemma 11, and the methods of the library). */
  function flops(poly, q, a, b) {
    const [m, n] = [BigInt(Math.min(a, b)), BigInt(Math.max(a, b))];
    const [Q, K, P] = [BigInt(q), BigInt(poly.kappa), BigInt(poly.products)];
    const [mmn, mmm] = [m * m * n, m * m * m];
    return {
      svd: 4n * mmn + 8n * mmm,
      horner: 2n * Q * (K + 1n) * mmn,
      standard: Q * (4n * mmn + 2n * mmm * P),
      gram: q ? 4n * mmn + 2n * mmm * (Q * P + 3n * (Q - 1n)) : 0n,
    };
  }

  const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const raised = (k) => (k < 0 ? "⁻" : "") + String(Math.abs(k)).replace(/\d/g, (d) => RAISED[d]);

  /* A number as a reader sees it: whole ones in full, others in four digits. */
  function text(x) {
    if (typeof x === "bigint") return x.toLocaleString("en-US");
    const size = Math.abs(x);
    if (x === 0) return "0";
    if (size >= 1e6 || size < 1e-3) {
      const [digits, power] = x.toExponential(3).split("e");
      return `${digits.replace("-", "−")}·10${raised(Number(power))}`;
    }
    if (size >= 1000) return Math.round(x).toLocaleString("en-US");
    return String(Number(x.toPrecision(4))).replace("-", "−");
  }

  /* Corollary A1 for L = D = 1 at the best peak rate; sums are Σh and Σh² of the schedule. */
  function run(rho, s, sums, steps, beta, noise, nesterov) {
    if (!(rho > 0)) return { eta: null, still: null, noise: null, total: null, cost: null };
    const ahead = nesterov ? beta : 1;
    const lag = (ahead * beta) / (1 - beta);
    const kept = Math.sqrt((1 - beta) / (1 + beta));
    const current = nesterov ? Math.sqrt(1 + 2 * beta - 2 * beta ** 3) : 1;
    const eta = Math.sqrt(1 / (sums.squares * s * (s / 2 + (rho + s) * lag)));
    const grows = ((eta * sums.squares) / sums.total) * s * (s / 2 + (rho + s) * lag);
    const still = (1 / (eta * sums.total) + grows + ((rho + s) * Math.SQRT2 * lag) / sums.total) / rho;
    const noisy = (noise * (rho * ahead * beta + s * current) * kept) / rho;
    return { eta, still, noise: noisy, total: still + noisy, cost: Math.sqrt(steps * sums.squares) / sums.total };
  }

  return { raised, text, tau, phi, composed, worst, respond, flops, covered, run };
})();
