// The script of reports, audits and comparisons: search in the answers, values under the pointer, and, on the page that
// `fspo watch` serves, updates of the content. Without it the page can still be read.
"use strict";

// --- search --------------------------------------------------------------------------------------------------------

function search() {
  const input = document.getElementById("search");
  if (!input) return;
  input.parentElement.hidden = false;
  const steps = all("details.step").map((step) => ({
    step,
    open: step.open,
    answers: all(".answer", step).map((answer) => ({ answer, text: answer.textContent.toLowerCase() })),
  }));
  const total = steps.reduce((sum, { answers }) => sum + answers.length, 0);
  const run = () => {
    const wanted = input.value.trim().toLowerCase();
    let matches = 0;
    for (const { step, answers, open } of steps) {
      let here = 0;
      for (const { answer, text } of answers) {
        answer.hidden = !text.includes(wanted);
        here += !answer.hidden;
      }
      step.hidden = here === 0;
      step.open = wanted ? here > 0 : open;
      matches += here;
    }
    document.getElementById("matches").textContent = wanted ? `${matches} of ${total} answers` : `${total} answers`;
  };
  input.addEventListener("input", run);
  run();
}

// --- values under the pointer --------------------------------------------------------------------------------------

function nearest(line, x) {
  // A path is "M x y x y ...", so its numbers come in pairs; a gap starts a new "M".
  const numbers = line.getAttribute("d").match(/-?[\d.]+/g).map(Number);
  let best = null;
  for (let k = 0; k + 1 < numbers.length; k += 2) {
    if (best === null || Math.abs(numbers[k] - x) < Math.abs(best[0] - x)) best = [numbers[k], numbers[k + 1]];
  }
  return best;
}

function tips() {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true"); // each chart's description has the figures for screen readers
  document.body.append(tip);
  const hide = () => (tip.hidden = true);
  document.addEventListener("pointermove", (event) => {
    const svg = event.target instanceof Element ? event.target.closest("svg[data-frame]") : null;
    const lines = svg ? all("path[data-label]", svg).filter((line) => !/h0/.test(line.getAttribute("d"))) : [];
    if (!lines.length || event.target.closest("circle")) return hide();
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const [left, right, top, bottom, x0, x1, y0, y1] = svg.dataset.frame.split(" ").map(Number);
    if (x < left - 4 || x > right + 4) return hide();
    const points = lines.map((line) => [line.dataset.label, nearest(line, x)]);
    const at = points.reduce((a, b) => (Math.abs(b[1][0] - x) < Math.abs(a[1][0] - x) ? b : a))[1][0];
    const step = x0 + ((at - left) / (right - left)) * (x1 - x0);
    // Values are read off the drawing, whose coordinates have one decimal.
    const digits = Math.max(0, 3 - Math.ceil(Math.log10(Math.max(Math.abs(y0), Math.abs(y1)))));
    const value = ([, y]) => (y0 + ((bottom - y) / (bottom - top)) * (y1 - y0)).toFixed(digits);
    const named = svg.dataset.x || "x";
    const where = x1 - x0 > 20 ? Math.round(step) : step.toFixed(2);
    tip.textContent = [`${named} ${where}`, ...points.filter(([, p]) => Math.abs(p[0] - at) < 2)
      .map(([label, p]) => `${label}: ${value(p)}`)].join("\n");
    tip.hidden = false;
    const farthest = document.body.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(4, Math.min(farthest, event.pageX + 14))}px`;
    tip.style.top = `${event.pageY + 16}px`;
  });
  document.addEventListener("pointerleave", hide);
  document.addEventListener("scroll", hide, { passive: true });
}

// --- live ----------------------------------------------------------------------------------------------------------

function swap(text) {
  const main = document.querySelector("main");
  const open = new Map(all("details[id]", main).map((d) => [d.id, d.open]));
  const wanted = document.getElementById("search")?.value ?? "";
  const active = document.activeElement;
  const focus = main.contains(active) && active.id ? [active.id, active.selectionStart, active.selectionEnd] : null;
  const scroll = [scrollX, scrollY];
  const fresh = new DOMParser().parseFromString(text, "text/html");
  main.replaceChildren(...fresh.body.childNodes);
  if (!wanted) all("details[id]", main).forEach((d) => open.has(d.id) && (d.open = open.get(d.id)));
  if (wanted) document.getElementById("search").value = wanted;
  search();
  if (focus) {
    const element = document.getElementById(focus[0]);
    element?.focus({ preventScroll: true });
    if (focus[1] != null) element?.setSelectionRange(focus[1], focus[2]);
  }
  scrollTo(...scroll);
}

async function live() {
  const status = document.getElementById("status");
  let version = root.dataset.live;
  let changed = new Date().toLocaleTimeString();
  for (;;) {
    try {
      const answer = await fetch("main", { headers: { "If-None-Match": version }, cache: "no-store" });
      if (answer.status === 200) {
        swap(await answer.text());
        version = answer.headers.get("ETag");
        changed = new Date().toLocaleTimeString();
      }
      const good = answer.status === 200 || answer.status === 304;
      status.textContent = good ? `live, last change ${changed}` : await answer.text();
    } catch {
      status.textContent = "no connection: fspo watch has ended";
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  search();
  tips();
  if (root.dataset.live !== undefined) live();
});
