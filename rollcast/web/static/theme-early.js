// Sets the theme before the first paint, so that a page never flashes in the other theme. Therefore a classic script.
try {
  const chosen = localStorage.getItem("rollcast-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off: the system's theme it is */ }
