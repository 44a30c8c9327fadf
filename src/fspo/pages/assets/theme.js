// What all pages share: the theme, which follows the system until the button is used, and is then remembered.
"use strict";

const root = document.documentElement;
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const percent = (value) => `${(100 * value).toFixed(value === 0 || value >= 0.00995 ? 1 : 2)}\u00a0%`;

function stored(value) {
  try {
    if (value !== undefined) localStorage.setItem("fspo-theme", value);
    return localStorage.getItem("fspo-theme");
  } catch {
    return null; // storage is switched off: the theme lasts as long as the page
  }
}

const saved = stored();
if (saved === "light" || saved === "dark") root.dataset.theme = saved;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeButton() {
  const button = document.getElementById("theme");
  const name = () => (button.textContent = isDark() ? "Light theme" : "Dark theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored(root.dataset.theme);
    name();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
}

document.addEventListener("DOMContentLoaded", themeButton);
