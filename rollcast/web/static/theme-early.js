// Before anything is drawn, so that a page in a chosen theme never flashes in the other. A classic script, therefore.
try {
  const chosen = localStorage.getItem("rollcast-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off: the system's theme it is */ }
