// Shows the values of a chart's position as text too: a touch screen has no hover titles.
document.addEventListener("pointerover", (event) => {
  const strip = event.target.closest ? event.target.closest(".hit") : null;
  if (!strip) return;
  const readout = strip.closest("figure").querySelector(".readout");
  readout.textContent = strip.querySelector("title").textContent.split("\n").join(" · ");
});
