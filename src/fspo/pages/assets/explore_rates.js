// The mathematics of the band explorer: rates from the normal distribution (the tests compare them with scipy).
"use strict";

// P(N(0, 1) > x). Near 0 by the series of the integral, in the tail by its continued fraction.
function upperTail(x) {
  if (x < 0) return 1 - upperTail(-x);
  const density = Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
  if (x < 3) {
    let term = x;
    let sum = x;
    for (let k = 3; Math.abs(term) > 1e-17 * Math.abs(sum); k += 2) sum += term *= (x * x) / k;
    return 0.5 - density * sum;
  }
  let fraction = x;
  for (let k = 60; k > 0; k--) fraction = x + k / fraction;
  return density / fraction;
}

function normalQuantile(p) {
  let [low, high] = [-9, 9];
  for (let k = 0; k < 60; k++) {
    const middle = (low + high) / 2;
    if (1 - upperTail(middle) < p) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

// Var(S) / (sigma^2 L) of a stationary first-order autoregression of the token log-ratios.
function inflation(L, phi) {
  return (1 + phi) / (1 - phi) - (2 * phi * (1 - phi ** L)) / (L * (1 - phi) ** 2);
}

const drift = (s) => -s.drift * (s.sigma ** 2 / 2);

// A table over the grid xs as a function: linear between its points and beyond them.
function interpolator(xs, ys) {
  return (x) => {
    const first = xs.findIndex((v) => v >= x);
    const k = first < 0 ? xs.length - 1 : Math.max(1, first);
    if (ys[k] === ys[k - 1] || x === xs[k - 1]) return ys[k - 1];
    return ys[k - 1] + ((ys[k] - ys[k - 1]) * (x - xs[k - 1])) / (xs[k] - xs[k - 1]);
  };
}

// The same in the logarithms of both, which is exact for a power of x.
function logInterpolator(xs, ys) {
  if (!ys.every((y) => y > 0 && y < Infinity)) return interpolator(xs, ys);
  const at = interpolator(xs.map(Math.log), ys.map(Math.log));
  return (x) => Math.exp(at(Math.log(x)));
}

// The rules that `fspo.report.explore` wrote: each objective's band on a grid of lengths, and its parameters on a grid
// of factors of the width. JSON has null for an infinite width.
let RULES;

function readRules() {
  const { lengths, factors, rules } = JSON.parse(document.getElementById("data").textContent);
  const width = (values) => logInterpolator(lengths, values.map((value) => value ?? Infinity));
  RULES = rules.map((rule) => ({
    name: rule.name,
    centred: rule.centred,
    look: `c${rule.colour}${rule.dashed ? " dashed" : ""}`,
    centre: interpolator(lengths, rule.centre),
    below: width(rule.below),
    above: width(rule.above),
    slider: rule.parameters && `width-${rule.key}`, // none where the width cannot be set
    parameters: Object.entries(rule.parameters ?? {}).map(([name, values]) => [name, logInterpolator(factors, values)]),
  }));
}

// The bounds of S at length L.
function band(rule, L, s) {
  const factor = rule.slider ? s[rule.slider] : 1;
  const centre = rule.centred ? drift(s) * L : rule.centre(L);
  return [centre - factor * rule.below(L), centre + factor * rule.above(L)];
}

// The share of answers of length L outside a rule's band.
function outside(rule, L, s) {
  const [low, high] = band(rule, L, s);
  const [mean, sd] = [drift(s) * L, s.sigma * Math.sqrt(L * inflation(L, s.phi))];
  return upperTail((mean - low) / sd) + upperTail((high - mean) / sd);
}

const LENGTHS = {
  short: { name: "short: median 64", median: 64, spread: 0.8 },
  reasoning: { name: "reasoning: median 1,024", median: 1024, spread: 1 },
  long: { name: "long reasoning: median 4,096", median: 4096, spread: 1.2 },
};
const BINS = 8;
const EACH = 40; // lengths per bin
const cache = new Map();

// Lengths at evenly spaced quantiles of a log-normal distribution: equal shares, shortest first.
function lengthsOf(key) {
  if (!cache.has(key)) {
    const { median, spread } = LENGTHS[key];
    const at = (k) => normalQuantile((k + 0.5) / (BINS * EACH));
    cache.set(key, Array.from({ length: BINS * EACH }, (_, k) => Math.max(1, Math.round(median * Math.exp(spread * at(k))))));
  }
  return cache.get(key);
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function summary(rule, s) {
  const rates = lengthsOf(s.lengths).map((L) => outside(rule, L, s));
  const bins = Array.from({ length: BINS }, (_, k) => mean(rates.slice(k * EACH, (k + 1) * EACH)));
  const kept = 1 - mean(bins);
  const lre = kept > 0 ? Math.max(...bins.map((rate) => Math.abs((1 - rate) / kept - 1))) : NaN;
  return { shortest: bins[0], longest: bins[BINS - 1], overall: mean(bins), lre };
}

// The factor of a rule's width at which its overall rate is the wanted one.
function matched(rule, wanted, s) {
  let [low, high] = [-16, 16];
  for (let k = 0; k < 80; k++) {
    const middle = (low + high) / 2;
    if (summary(rule, { ...s, [rule.slider]: Math.exp(middle) }).overall > wanted) low = middle;
    else high = middle;
  }
  return Math.exp((low + high) / 2);
}
