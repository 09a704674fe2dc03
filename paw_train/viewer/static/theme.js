// Runs before the first paint: the chosen theme, or none, which leaves it to the system.
(() => {
  "use strict";
  const key = "paw-view-theme";
  let chosen = null;
  try {
    chosen = localStorage.getItem(key);
  } catch {
    // no storage: the system decides
  }
  const show = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  show(chosen);
  window.pawTheme = {
    dark: () => {
      const set = document.documentElement.dataset.theme;
      return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    },
    toggle: () => {
      const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      const wanted = window.pawTheme.dark() ? "light" : "dark";
      show(wanted === system ? null : wanted);
      try {
        if (wanted === system) localStorage.removeItem(key);
        else localStorage.setItem(key, wanted);
      } catch {
        // it lasts until the page is left
      }
    },
  };
})();
