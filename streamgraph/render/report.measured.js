// ---- measured times: a run that took place, in the place of the simulated one, or beside it ----------------------------------------------
const M = D.measured, WHOLE = ["basis", "bound", "makespan", "oneStream", "speedUp", "overlap", "sources", "lanes", "memory", "bands"], ROW2 = 11;
const simulated = { task: { ...T }, wait: { ...W }, storage: { ...S } };
for (const key of WHOLE) simulated[key] = D[key];
const MODES = { planned: "simulated, as planned", measured: "as measured", both: "simulated bars, measured ones below" };
let mode = "planned";
const within = f => (...given) => { const kept = end; end = Math.max(D.makespan, 1e-3); try { return f(...given); } finally { end = kept; } };
const ownGutter = within(gutter);
gutter = pen => { ownGutter(pen); pen.font = "10px " + MONO; for (let lane = 0; mode === "both" && lane < lanes; lane++) pen.fillText("measured", 4, laneTop(lane) + BAR + 7); pen.font = "11px " + MONO; };
drawEnds = within(drawEnds); ends = within(ends); strip = within(strip); drawMemory = within(drawMemory);
function times(name) {
  const from = name === "measured" ? M : simulated;
  mode = name;
  for (const key of WHOLE) D[key] = from[key];
  Object.assign(T, from.task); Object.assign(W, from.wait); Object.assign(S, from.storage);
  end = Math.max(D.makespan, name === "both" ? M.makespan : 0, 1e-3);
  critical.fill(0); criticalWait.fill(0);
  for (const task of T.critical) critical[task] = 1;
  for (const wait of W.critical) criticalWait[wait] = 1;
  ranked.sort((a, b) => criticalWait[b] - criticalWait[a] || held(b) - held(a) || a - b);
  hostWaits = W.lane.flatMap((lane, wait) => D.lanes[lane][3] && held(wait) > 0 ? [wait] : []);
  spanCache.clear(); memoryTime = null;
  for (const button of $("times").children) button.setAttribute("aria-pressed", String(button.dataset.mode === name));
  root.dataset.times = name;
  $("live").textContent = "Times: " + MODES[name];
  $("figures").replaceChildren(); head(); panel();
  view.from = -end * 0.012; view.to = end * 1.02;
  redraw();
}
const plain = { head, overview, taskPanel, said, drawIssue };
drawIssue = pen => {
  if (mode !== "measured" || M.inOrder) plain.drawIssue(pen);
  if (mode === "both") for (let lane = 0; lane < lanes; lane++) drawMeasured(pen, lane);
};
function drawMeasured(pen, lane) { // a second row, close below the lane's own
  const top = laneTop(lane) + BAR + 1, all = laneTasks.of(lane);
  pen.fillStyle = colour.soft; pen.fillRect(GUTTER, top, boxes.right - GUTTER, ROW2);
  for (let at = first(all, view.from, M.task.end), drawn = -9; at < all.length; at++) {
    const task = all[at], left = x(M.task.start[task]), right = Math.max(x(M.task.end[task]), left + 1);
    if (left > boxes.right) break;
    if (right - drawn < 0.5) continue;
    pen.fillStyle = T.paints[T.paint[task]][1]; pen.fillRect(left, top, right - left - (right - left > 4 ? 1 : 0), ROW2);
    if (selected.task === task) { pen.strokeStyle = colour.accent; pen.lineWidth = 3; pen.strokeRect(left - 1, top, right - left + 1, ROW2); }
    drawn = right;
    const text = fitted(T.name[task], Math.floor((right - Math.max(left, GUTTER) - 4) / character));
    if (text) { pen.fillStyle = "#111"; pen.font = "9px " + MONO; pen.fillText(text, Math.max(left, GUTTER) + 2, top + 6); pen.font = "11px " + MONO; }
  }
}
const P = simulated.task, took = (from, task) => from.end[task] - from.start[task];
function apart(mine, its) { const far = its - mine; return (far < 0 ? "−" : "+") + span(Math.abs(far)) + (mine > 0 ? ", " + (its / mine).toFixed(2) + "×" : ""); }
head = () => {
  plain.head();
  const own = $("figures").children;
  if (mode === "measured") { own[0].lastChild.textContent = "makespan, measured"; own[1].lastChild.textContent = `as fast as task after task (${span(D.oneStream)})`; }
  own[1].after(el("li", {}, el("b", {}, D.overlap.toFixed(2)), el("span", {}, "tasks at once")));
  if (mode !== "measured") own[0].after(el("li", {}, el("b", {}, span(M.makespan)), el("span", {}, `measured (${M.speedUp.toFixed(2)}×, ${M.overlap.toFixed(2)} at once)`)));
};
said = thing => plain.said(thing) + (thing.task >= 0 && mode !== "measured" ? "\nmeasured " + span(took(M.task, thing.task)) : "");
taskPanel = (box, task) => {
  plain.taskPanel(box, task);
  const list = facts([
    ["planned", `${span(took(P, task))}, ${span(P.start[task])} to ${span(P.end[task])}`], ["measured", `${span(took(M.task, task))}, ${span(M.task.start[task])} to ${span(M.task.end[task])}`],
    ["time", apart(took(P, task), took(M.task, task))], ["start", apart(P.start[task], M.task.start[task])],
  ]);
  list.id = "apart";
  box.children[1].after(el("h3", {}, "Planned and measured"), list);
};
const farthest = Array.from(everyTask).sort((a, b) => Math.abs(took(M.task, b) - took(P, b)) - Math.abs(took(M.task, a) - took(P, a)) || a - b);
overview = box => {
  plain.overview(box);
  const about = [...box.querySelectorAll("h3")].find(title => title.textContent === "Where times come from");
  if (mode === "measured") about.nextElementSibling.textContent = D.basis + ". Starts and ends of tasks are measured. Waits are not: a lane comes to a wait when the task before is done, and goes on when the one waited for is.";
  about.before(el("h3", {}, "Planned and measured"), el("p", { class: "hint" }, `Simulated ${span(simulated.makespan)}, ${M.basis}: ${span(M.makespan)}. One after another: simulated ${span(simulated.oneStream)}, measured ${span(M.oneStream)}. Tasks whose times differ most:`),
    limited(farthest, task => el("li", {}, taskLink(task), el("p", {}, `planned ${span(took(P, task))}, measured ${span(took(M.task, task))} (${apart(took(P, task), took(M.task, task))})`)), 12));
};
document.querySelector(".tools").before(el("div", { class: "tools", id: "times", role: "group", "aria-label": "Times" }, ...Object.keys(MODES).map(name => el("button", { type: "button", "data-mode": name, "aria-pressed": "false", title: "Times " + MODES[name] + " ( m: next )", onclick: () => times(name) }, name))));
$("keys").querySelector("dl").append(el("div", {}, el("dt", {}, "m"), el("dd", {}, "times: planned, measured, both")));
keys.m = () => { const names = Object.keys(MODES); times(names[(names.indexOf(mode) + 1) % names.length]); };
times("both");
