// A tick after each poll, charts, and a live tail. Everything else works without scripts.
"use strict";
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const charts = new WeakMap();
async function draw(box) {
  const answer = await fetch(box.dataset.chart);
  if (!answer.ok) return;
  const columns = await answer.json();
  if (!columns[0] || columns[0].length < 2) return;
  const known = charts.get(box);
  if (known) return known.setData(columns);
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const colours = ["--classic", "--ledger", "--warn", "--bad"];
  const series = box.dataset.series.split(",").map((label, number) => ({
    label, stroke: colour(colours[number % 4]), width: 1.5, spanGaps: true,
  }));
  const plot = new uPlot({
    width: box.clientWidth, height: 170, cursor: { drag: { x: false } },
    scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.1] } },
    axes: [axis, { ...axis, size: 60 }], series: [{}, ...series],
  }, columns, box);
  charts.set(box, plot);
}
function drawAll() { document.querySelectorAll("[data-chart]").forEach(draw); }
function tail(list) {
  const source = new EventSource(list.dataset.tail);
  source.addEventListener("row", (event) => {
    list.insertAdjacentHTML("afterbegin", event.data);
    while (list.children.length > 200) list.lastElementChild.remove();
  });
  source.addEventListener("end", () => source.close());
}
document.addEventListener("DOMContentLoaded", () => {
  drawAll();
  addEventListener("resize", () => document.querySelectorAll("[data-chart]").forEach((box) => {
    const plot = charts.get(box);
    if (plot) plot.setSize({ width: box.clientWidth, height: 170 });
  }));
  if (document.querySelector("[hx-trigger^=tick],[data-chart]")) {
    const source = new EventSource("/events");
    source.addEventListener("tick", () => {
      document.body.dispatchEvent(new CustomEvent("tick"));
      drawAll();
    });
  }
  document.querySelectorAll("[data-tail]").forEach(tail);
});
