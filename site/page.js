// One line about how this very page arrived, from the browser's own clock.
addEventListener("load", () => setTimeout(() => {
  const [page] = performance.getEntriesByType("navigation");
  const place = document.getElementById("fact");
  if (!page || !place) return;
  const files = performance.getEntriesByType("resource");
  const bytes = [page, ...files].reduce((sum, entry) => sum + entry.transferSize, 0);
  const wait = page.responseStart - page.requestStart;
  const protocol = { "http/1.1": "HTTP/1.1", "http/1.0": "HTTP/1.0", h2: "HTTP/2" }[page.nextHopProtocol] || "HTTP";
  place.textContent = `${files.length + 1} files over ${protocol}, ` +
    (bytes ? `${(bytes / 1024).toFixed(1)} KiB; ` : "from your browser's cache; ") +
    `first byte ${wait.toFixed(1)} ms after your browser asked.`;
  place.hidden = false;
}));
