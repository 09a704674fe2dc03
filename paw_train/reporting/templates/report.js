// Draws the charts of a report from the data in it: what lies over one another is hovered and chosen together.

for (const [i, section] of JSON.parse(document.getElementById("sections").textContent).entries()) {
  const place = document.querySelector(`[data-section="${i}"]`);
  let chosen = null;
  const draw = () => charts.forEach((chart) => chart.draw(chosen, section.smoothing));
  const choose = (range) => { chosen = range; draw(); };
  const brush = {
    hover: (x) => charts.forEach((chart) => chart.hover(x)),
    choose: (from, to) => choose([from, to]),
    clear: () => choose(null),
  };
  const charts = section.charts.map(({ series, ...chart }) =>
    new Chart({ ...chart, across: `${section.across} `, tall: 200, legend: true }, series.map((one) => ({ updates: section.x, ...one })), brush));
  place.append(...charts.map((chart) => chart.node));
  draw(); // at once: a page may be printed before its first frame
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(place);
}
