"use strict";
// The report of a schedule: plain data becomes lanes, a graph, tables. Nothing is loaded, nothing animates, and names are only ever text.
const root = document.documentElement;
addEventListener("error", event => { root.dataset.error = String(event.message); });
const begun = performance.now();
const $ = id => document.getElementById(id);
const D = JSON.parse($("data").textContent), T = D.task, W = D.wait, H = D.hazard, S = D.storage, U = D.use, N = D.names;
const tasks = T.name.length, waits = W.event.length, lanes = D.lanes.length;
const NOBODY = -1, ENTRY = -2, EXIT = -3, HOST = -4;
const critical = new Uint8Array(tasks), criticalWait = new Uint8Array(waits), previous = new Uint8Array(waits);
for (const task of T.critical) critical[task] = 1;
for (const wait of W.critical) criticalWait[wait] = 1;
for (const wait of W.previous) previous[wait] = 1;

// ---- words -------------------------------------------------------------------------------------------------------------------------
const three = n => n >= 99.95 ? Math.round(n).toLocaleString("en") : String(+n.toFixed(n >= 9.995 ? 1 : 2));
const span = us => us >= 999500 ? three(us / 1e6) + " s" : us >= 999.5 ? three(us / 1e3) + " ms" : three(us) + " us";
const bytes = n => { for (const u of ["B", "KiB", "MiB", "GiB"]) { if (n < 999.5) return (u === "B" ? n : +n.toPrecision(3)) + " " + u; n /= 1024; } return +n.toPrecision(3) + " TiB"; };
const count = n => n.toLocaleString("en");
const many = (n, word) => count(n) + " " + word + (n === 1 ? "" : "s");
const who = task => task >= 0 ? T.name[task] : task === ENTRY ? "entry" : task === EXIT ? "exit" : task === HOST ? "host" : "the run before";
const laneName = lane => lane >= 0 ? D.lanes[lane][0] : "";
const why = reason => [N[reason[0]], N[reason[1]]].filter(Boolean).join(" ");
const held = wait => W.until[wait] - W.since[wait];
function el(tag, set, ...children) {
  const node = document.createElement(tag);
  for (const key in set || {}) if (key === "class") node.className = set[key]; else if (key.startsWith("on")) node.addEventListener(key.slice(2), set[key]); else node.setAttribute(key, set[key]);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}
const link = (text, go) => el("button", { class: "link", type: "button", onclick: go }, text);
const taskLink = task => task >= 0 ? link(T.name[task], () => select({ task }, true)) : el("span", {}, who(task));

// ---- relations: who waits for whom, and what implies a hazard that got no wait (as streamgraph.explain does) -------------------------
function grouped(keys, size) { // numbers by key, in order: [offsets, numbers]
  const offsets = new Int32Array(size + 1);
  for (const key of keys) if (key >= 0) offsets[key + 1]++;
  for (let i = 0; i < size; i++) offsets[i + 1] += offsets[i];
  const fill = offsets.slice(), numbers = new Int32Array(offsets[size]);
  keys.forEach((key, number) => { if (key >= 0) numbers[fill[key]++] = number; });
  return { of: key => numbers.subarray(offsets[key], offsets[key + 1]) };
}
const laneTasks = grouped(T.lane, lanes);
const before = new Int32Array(tasks).fill(NOBODY), after = new Int32Array(tasks).fill(NOBODY), placeInLane = new Int32Array(tasks);
for (let lane = 0; lane < lanes; lane++) laneTasks.of(lane).forEach((task, i, all) => { placeInLane[task] = i; if (i) { before[task] = all[i - 1]; after[all[i - 1]] = task; } else if (lane === D.main) before[task] = ENTRY; });
const waitsOf = grouped(W.to, tasks), waitsFrom = grouped(W.from, tasks), usesOf = grouped(U.task, tasks), usesIn = grouped(U.storage, S.label.length);
const hazardsInto = grouped(H.later, tasks), hazardsOut = grouped(H.earlier, tasks);
const order = task => task === ENTRY ? -1 : task;
function linksInto(task) { // [earlier, later, wait], NOBODY where the lane's own order is the link
  const found = Array.from(waitsOf.of(task)).filter(wait => !previous[wait]).map(wait => [W.from[wait], task, wait]);
  return before[task] === NOBODY ? found : [...found, [before[task], task, NOBODY]];
}
function linksOut(task) {
  const found = Array.from(waitsFrom.of(task)).filter(wait => W.to[wait] >= 0).map(wait => [task, W.to[wait], wait]);
  if (after[task] >= 0) found.push([task, after[task], NOBODY]);
  return found.sort((a, b) => a[1] - b[1]);
}
function search(start, into, bound) { // to each task that is ordered with `start`, the link on the way with the fewest waits
  const tree = new Map([[start, null]]), cost = new Map([[start, 0]]), free = [], queue = [start];
  for (let at = 0; free.length || at < queue.length;) {
    const node = free.length ? free.pop() : queue[at++];
    if (node < 0) continue;
    for (const entry of into ? linksInto(node) : linksOut(node)) {
      const other = entry[into ? 0 : 1], price = cost.get(node) + (entry[2] !== NOBODY);
      if ((into ? order(other) < bound : other > bound) || price >= (cost.get(other) ?? Infinity)) continue;
      cost.set(other, price); tree.set(other, entry); (entry[2] === NOBODY ? free : queue).push(other);
    }
  }
  return tree;
}
function path(tree, other, into) { // what follows on one lane is one link
  const found = [];
  for (let entry = tree.get(other); entry; entry = tree.get(entry[into ? 1 : 0])) found.push(entry);
  if (!into) found.reverse();
  return found.reduce((links, entry) => { const last = links.at(-1); if (last && last[2] === NOBODY && entry[2] === NOBODY) links[links.length - 1] = [last[0], entry[1], NOBODY]; else links.push(entry); return links; }, []);
}
function verdict(links) {
  if (!links.length) return "may overlap";
  if (links.length > 1) return links.every(entry => entry[2] === NOBODY) ? "same lane" : "implied";
  return links[0][2] === NOBODY ? "same lane" : "wait";
}
function relations(task, into) { // each neighbour once, by number, with the hazards between
  const others = new Map();
  for (const hazard of (into ? hazardsInto : hazardsOut).of(task)) {
    const other = into ? H.earlier[hazard] : H.later[hazard];
    if (other < 0) continue;
    if (!others.has(other)) others.set(other, []);
    others.get(other).push([H.kind[hazard], H.tensor[hazard]]);
  }
  const found = [...others].sort((a, b) => a[0] - b[0]), tree = found.length ? search(task, into, found[into ? 0 : found.length - 1][0]) : null;
  return found.map(([other, hazards]) => { const links = path(tree, other, into); return { other, hazards, links, verdict: verdict(links) }; });
}
globalThis.streamgraph = { data: D, relations }; // for tests, and for a look from the console

// ---- canvas ------------------------------------------------------------------------------------------------------------------------
const MONO = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace';
let colour = {}, character = 6.6, hatches = {};
function theme() {
  const style = getComputedStyle(root);
  for (const key of ["page", "ink", "quiet", "line", "soft", "accent", "hot", "held", "free", "grid", "hatch", "mark", "mem", "mem2", "life", "use", "bar"]) colour[key] = style.getPropertyValue("--" + key).trim();
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "11px " + MONO;
  character = pen.measureText("MMMMMMMMMM").width / 10;
  hatches = { idle: hatch(colour.hatch, 1), 1: hatch("rgba(0,0,0,.2)", 1), 2: hatch("rgba(0,0,0,.2)", -1) };
}
function hatch(stroke, lean) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = stroke; pen.lineWidth = 1.3; pen.beginPath();
  for (const shift of [-8, 0, 8]) { pen.moveTo(shift, lean > 0 ? 8 : 0); pen.lineTo(shift + 8, lean > 0 ? 0 : 8); }
  pen.stroke();
  return pen.createPattern(tile, "repeat");
}
function sheet(canvas, height) { // a canvas as wide as its place, sharp on every screen
  const width = canvas.clientWidth || canvas.parentElement.clientWidth, ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = height + "px"; }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px " + MONO; pen.textBaseline = "middle"; pen.textAlign = "left";
  return [pen, width];
}
function fitted(label, room) { // whole, or cut in the middle so that its member stays, or nothing
  if (label.length <= room) return label;
  const at = label.indexOf("@"), tail = at < 0 ? "" : label.slice(at);
  if (tail && !tail.includes(" ")) {
    if (tail.length + 3 <= room) return label.slice(0, room - tail.length - 1) + "…" + tail;
    if (tail.length <= room) return tail;
    if (tail.length - 1 <= room) return tail.slice(1);
  }
  return room >= 4 ? label.slice(0, room - 1) + "…" : "";
}
const hatchOf = paint => T.paints[paint][2];

// ---- timeline ----------------------------------------------------------------------------------------------------------------------
const BAR = 30, GUTTER = 132, TOP = 34, MOST_ARROWS = 300, MOST_WORDS = 70, APART = 16, STRIP = 62;
const GAP = lanes > 10 ? 14 : 34;
const view = { from: 0, to: 0 };
let end = Math.max(D.makespan, 1e-3);
const stage = $("stage");
let selected = {}, matches = [], match = -1, drawnArrows = [], pointer = null, boxes = { right: 100 };
const laneTop = lane => TOP + lane * (BAR + GAP);
const issueTop = TOP + lanes * (BAR + GAP) - GAP + 16, memoryTop = issueTop + 16 + 20, places = Object.keys(D.memory).filter(place => D.memory[place].bytes.some(Boolean));
const paintOf = place => place === "host" ? colour.mem2 : colour.mem, stageHeight = memoryTop + places.length * (STRIP + 12) + 6;
const x = time => GUTTER + (time - view.from) * (boxes.right - GUTTER) / (view.to - view.from);
const timeAt = px => view.from + (px - GUTTER) * (view.to - view.from) / (boxes.right - GUTTER);
function fit() { view.from = -end * 0.012; view.to = end * 1.02; draw(); }
function zoom(factor, middle) {
  const width = Math.min(end * 1.1, Math.max(end / 1e6, (view.to - view.from) * factor)), share = (middle - view.from) / (view.to - view.from);
  view.from = middle - width * share; view.to = view.from + width; pan(0);
}
function pan(time) {
  const width = view.to - view.from, from = Math.max(-end * 0.05, Math.min(view.from + time, end * 1.05 - Math.min(width, end * 1.05)));
  view.from = from; view.to = from + width; draw();
}
function bring(from, to) { // into view, with some room around
  const width = view.to - view.from;
  if (to - from > width) { view.from = from - (to - from) * 0.1; view.to = to + (to - from) * 0.1; }
  else if (to - from < width / 400) { const wide = Math.max((to - from) * 40, end / 1e5); view.from = (from + to) / 2 - wide / 2; view.to = view.from + wide; }
  else if (from < view.from || to > view.to) { view.from = (from + to) / 2 - width / 2; view.to = view.from + width; }
}
function first(sorted, value, column) { // the first of a lane's tasks whose time is not before the value
  let low = 0, high = sorted.length;
  while (low < high) { const middle = low + high >> 1; if (column[sorted[middle]] < value) low = middle + 1; else high = middle; }
  return low;
}
let hostWaits = W.lane.flatMap((lane, wait) => D.lanes[lane][3] && held(wait) > 0 ? [wait] : []);
const ranked = Int32Array.from({ length: waits }, (_, wait) => wait).sort((a, b) => criticalWait[b] - criticalWait[a] || held(b) - held(a) || a - b);

function axis(pen, width, bottom) {
  const rough = (view.to - view.from) / Math.max(2, (boxes.right - GUTTER) / 110), unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map(n => n * unit).find(n => n >= rough);
  pen.fillStyle = colour.quiet; pen.strokeStyle = colour.grid; pen.lineWidth = 1; pen.textAlign = "center"; pen.beginPath();
  for (let tick = Math.ceil(Math.max(0, view.from) / step) * step; tick <= view.to && tick <= end * 1.04; tick += step) {
    const px = Math.round(x(tick)) + 0.5;
    if (px < GUTTER) continue;
    pen.moveTo(px, 20); pen.lineTo(px, bottom);
    pen.fillText(tick < step / 2 ? "0" : span(tick), px, 11);
  }
  pen.stroke(); pen.textAlign = "left";
}
function draw() {
  if ($("timeline").hidden) return;
  const [pen, width] = sheet(stage, stageHeight);
  boxes.right = width - 12;
  axis(pen, width, stageHeight - 4);
  pen.save(); pen.beginPath(); pen.rect(GUTTER, 0, width - GUTTER, stageHeight); pen.clip();
  for (let lane = 0; lane < lanes; lane++) drawLane(pen, lane);
  drawEnds(pen);
  drawIssue(pen);
  drawArrows(pen);
  pen.restore();
  gutter(pen);
  let top = memoryTop;
  for (const place of places) { strip(pen, D.memory[place], top, STRIP, paintOf(place), place, x, GUTTER, boxes.right); top += STRIP + 12; }
  drawTensors();
}
function gutter(pen) {
  for (let lane = 0; lane < lanes; lane++) {
    const top = laneTop(lane), [name, about, busy] = D.lanes[lane];
    pen.fillStyle = colour.ink; pen.font = "bold 12px " + MONO; pen.fillText(fitted(name, 16), 4, top + 9);
    pen.font = "11px " + MONO; pen.fillStyle = colour.quiet;
    pen.fillText(Math.round(100 * busy / end) + "% busy" + about, 4, top + 23);
  }
  pen.fillStyle = colour.quiet; pen.fillText("host issues", 4, issueTop + 6);
}
function drawLane(pen, lane) {
  const top = laneTop(lane), all = laneTasks.of(lane), isHost = D.lanes[lane][3];
  pen.fillStyle = colour.soft; pen.fillRect(GUTTER, top, boxes.right - GUTTER, BAR);
  tints(pen, lane, top);
  let run = null, reached = 0, at = first(all, view.from, T.end);
  if (at) reached = T.end[all[at - 1]];
  const labels = [];
  const flush = () => { if (!run) return; pen.fillStyle = run.fill; pen.fillRect(run.left, top, Math.max(1, run.right - run.left), BAR); if (run.hot) { pen.fillStyle = colour.hot; pen.fillRect(run.left, top + BAR - 4, Math.max(1, run.right - run.left), 4); } run = null; };
  for (; at < all.length; at++) {
    const task = all[at], left = x(T.start[task]), right = x(T.end[task]), edge = x(reached);
    if (!isHost && left - edge > 3) { flush(); idle(pen, Math.max(edge, GUTTER), Math.min(left, boxes.right), top, T.start[task] - reached); }
    if (left > boxes.right) break;
    reached = T.end[task];
    if (right - left < 2) {
      if (run && left <= run.right + 0.6) { run.right = Math.max(run.right, right); run.hot ||= critical[task]; } else { flush(); run = { left, right: Math.max(right, left + 1), fill: T.paints[T.paint[task]][1], hot: critical[task] }; }
      continue;
    }
    flush();
    const wide = right - left - (right - left > 4 ? 1 : 0);
    pen.fillStyle = T.paints[T.paint[task]][1]; pen.fillRect(left, top, wide, BAR);
    if (hatchOf(T.paint[task])) { pen.fillStyle = hatches[hatchOf(T.paint[task])]; pen.fillRect(left, top, wide, BAR); }
    if (critical[task]) outline(pen, left, top, wide, colour.hot, 2.5);
    if (wide > 14) labels.push([task, left, wide]);
  }
  flush();
  if (isHost) for (const wait of hostWaits) {
    const left = Math.max(x(W.since[wait]), GUTTER), right = Math.min(x(W.until[wait]), boxes.right);
    if (right - left < 3) continue;
    pen.strokeStyle = colour.held; pen.lineWidth = 1; pen.setLineDash([2, 3]); pen.strokeRect(left + 0.5, top + 6.5, right - left - 1, BAR - 13); pen.setLineDash([]);
    if (right - left > 90) { pen.fillStyle = colour.quiet; pen.fillText("host waits", (left + right) / 2 - 32, top + 15.5); }
  }
  pen.fillStyle = "#111"; pen.textAlign = "center";
  for (const [task, left, wide] of labels) {
    const l = Math.max(left, GUTTER), r = Math.min(left + wide, boxes.right), name = fitted(T.name[task], Math.floor((r - l - 6) / character)), time = span(T.end[task] - T.start[task]);
    if (!name) continue;
    const both = time.length * character + 6 < r - l;
    pen.fillText(name, (l + r) / 2, top + (both ? 9.5 : 15.5));
    if (both) { pen.font = "10px " + MONO; pen.fillText(time, (l + r) / 2, top + 21.5); pen.font = "11px " + MONO; }
  }
  pen.textAlign = "left";
  if (selected.task >= 0 && T.lane[selected.task] === lane) marked(pen, selected.task, colour.accent, 4);
  matches.slice(0, 2000).forEach((entry, i) => { if (entry.task >= 0 && T.lane[entry.task] === lane) marked(pen, entry.task, colour.mark, i === match ? 4 : 2); });
}
function tints(pen, lane, top) { // behind the tasks of each iteration of a loop
  pen.globalAlpha = 0.4;
  for (const [row, , from, to, tint] of D.bands) {
    const left = Math.max(x(from), GUTTER), wide = Math.min(x(to), boxes.right) - left;
    pen.fillStyle = tint;
    if (row === lane && wide > 0) pen.fillRect(left, top - 5, wide, BAR + 10);
  }
  pen.globalAlpha = 1;
}
function idle(pen, left, right, top, time) {
  if (right - left < 2) return;
  pen.fillStyle = hatches.idle; pen.fillRect(left, top, right - left, BAR);
  const text = "idle " + span(time), room = text.length * character + 8;
  if (right - left > room + 6) { const middle = (left + right) / 2; pen.fillStyle = colour.soft; pen.fillRect(middle - room / 2, top + 8, room, 14); pen.fillStyle = colour.quiet; pen.textAlign = "center"; pen.fillText(text, middle, top + 15.5); pen.textAlign = "left"; }
}
function outline(pen, left, top, wide, stroke, weight) { pen.strokeStyle = stroke; pen.lineWidth = weight; pen.strokeRect(left + weight / 2, top + weight / 2, Math.max(0.5, wide - weight), BAR - weight); }
function marked(pen, task, stroke, weight) {
  const left = x(T.start[task]), wide = Math.max(3, x(T.end[task]) - left);
  pen.strokeStyle = stroke; pen.lineWidth = weight; pen.strokeRect(left - weight / 2, laneTop(T.lane[task]) - weight / 2 - 1, wide + weight - 1, BAR + weight + 2);
}
function drawEnds(pen) {
  const top = laneTop(D.main);
  pen.strokeStyle = colour.held; pen.fillStyle = colour.quiet; pen.lineWidth = 1.4;
  for (const [time, text, shift] of [[0, "entry", -1], [end, "exit", 1]]) {
    const px = x(time);
    if (px < GUTTER - 40 || px > boxes.right + 40) continue;
    pen.beginPath(); pen.moveTo(px, top - 3); pen.lineTo(px, top + BAR + 3); pen.stroke();
    pen.textAlign = shift < 0 ? "left" : "right"; pen.fillText(text, px - 2 * shift * -1, top - 8); pen.textAlign = "left";
  }
}
function drawIssue(pen) { // when the one host thread was done with issuing each task
  pen.fillStyle = colour.soft; pen.fillRect(GUTTER, issueTop, boxes.right - GUTTER, 13);
  const low = first(everyTask, view.from, T.issued), wide = Math.max(1, x(D.issueCost) - x(0) - 1);
  let drawn = -9;
  pen.fillStyle = colour.held;
  for (let task = low; task < tasks && T.issued[task] <= view.to + D.issueCost; task++) {
    if (D.lanes[T.lane[task]][3]) continue;
    const right = x(T.issued[task]);
    if (right - drawn < 1) continue;
    pen.fillRect(right - wide, issueTop + 2, wide, 9); drawn = right;
  }
  if (selected.task >= 0) { pen.fillStyle = colour.accent; pen.fillRect(x(T.issued[selected.task]) - Math.max(wide, 3), issueTop, Math.max(wide, 3), 13); }
}
const everyTask = Int32Array.from({ length: tasks }, (_, task) => task);
function ends(wait) { // where an arrow begins and ends: [x, lane], [x, lane]
  const to = W.to[wait], target = to >= 0 && !D.lanes[W.lane[wait]][3] ? Math.max(W.until[wait], T.start[to]) : to === EXIT ? end : W.until[wait];
  return [W.from[wait] === ENTRY ? 0 : W.at[wait], W.fromLane[wait], target, W.lane[wait]];
}
function along4(p, t) { // a point of a curve
  const a = (1 - t) ** 3, b = 3 * t * (1 - t) ** 2, c = 3 * t * t * (1 - t), d = t ** 3;
  return [a * p[0] + b * p[2] + c * p[4] + d * p[6], a * p[1] + b * p[3] + c * p[5] + d * p[7]];
}
function drawArrows(pen) {
  drawnArrows = [];
  let seen = 0;
  const chosen = [], crowded = new Set();
  for (const wait of ranked) {
    const [from, source, to] = ends(wait);
    if (source < 0 || Math.max(from, to) < view.from || Math.min(from, to) > view.to) continue;
    seen++;
    const bucket = source * lanes + W.lane[wait] + ":" + Math.round(x(to) / APART);
    if (chosen.length < MOST_ARROWS && !crowded.has(bucket) || wait === selected.wait) { chosen.push(wait); if (waits > MOST_WORDS) crowded.add(bucket); }
  }
  const own = wait => wait === selected.wait || (selected.task >= 0 && (W.to[wait] === selected.task || W.from[wait] === selected.task));
  if (selected.task >= 0) for (const list of [waitsOf, waitsFrom]) for (const wait of list.of(selected.task)) if (!chosen.includes(wait) && W.fromLane[wait] >= 0) chosen.push(wait);
  chosen.sort((a, b) => own(a) - own(b) || criticalWait[a] - criticalWait[b]);
  const words = seen <= MOST_WORDS, taken = [], turns = new Map(), dots = [];
  const routes = chosen.map(wait => {
    const [from, source, to, lane] = ends(wait), key = W.to[wait] + ":" + lane, turn = turns.get(key) || 0;
    turns.set(key, turn + 1);
    const down = lane > source, flat = lane === source;
    const x0 = x(from) - (W.from[wait] >= 0 ? Math.min(3, (x(from) - x(T.start[W.from[wait]])) / 2) : 0), x1 = x(to) + (W.to[wait] >= 0 && !D.lanes[lane][3] ? Math.min(4 + 6 * turn, (x(T.end[W.to[wait]]) - x(to)) / 2) : -3 - 5 * turn);
    const y0 = laneTop(source) + (down ? BAR : 0), y1 = laneTop(lane) + (down || flat ? 0 : BAR), bend = flat ? -GAP * 0.7 : (down ? 1 : -1) * Math.min(GAP * 0.9, Math.abs(y1 - y0) * 0.6);
    return { wait, own: own(wait), points: [x0, y0, x0, y0 + bend, x1, y1 - (flat ? -bend : bend), x1, y1], down: down || flat };
  });
  for (const route of routes) {
    const { wait, points: p } = route, hot = criticalWait[wait], free = held(wait) <= 0;
    pen.strokeStyle = pen.fillStyle = route.own ? colour.accent : hot ? colour.hot : free ? colour.free : colour.held;
    pen.lineWidth = route.own ? 2.6 : hot ? 2 : 1.3; pen.setLineDash(free && !route.own ? [3, 3] : []);
    pen.beginPath(); pen.moveTo(p[0], p[1]); pen.bezierCurveTo(p[2], p[3], p[4], p[5], p[6], p[7] - (route.down ? 5 : -5)); pen.stroke(); pen.setLineDash([]);
    pen.beginPath(); pen.moveTo(p[6], p[7]); pen.lineTo(p[6] - 3.6, p[7] - (route.down ? 7 : -7)); pen.lineTo(p[6] + 3.6, p[7] - (route.down ? 7 : -7)); pen.fill();
    drawnArrows.push(route);
    for (let t = 0.05; words && t < 1; t += 0.1) dots.push(along4(p, t));
  }
  for (const route of routes.reverse()) { // labels last: those of the selection and the critical path choose their place first
    const { wait, points: p } = route, text = N[W.label[wait]];
    if (!text || !(words || route.own) || GAP < 20) continue;
    const wide = text.length * character * 0.92 + 4;
    const low = route.down ? p[7] - GAP : p[7], rows = [low + GAP * 0.5, low + GAP * 0.28, low + GAP * 0.74];
    const place = rows.flatMap(y => [[p[6] + 8, y], [p[6] - 8 - wide, y]]).find(([left, y]) => left > GUTTER && left + wide < boxes.right && !taken.some(t => left < t[1] && t[0] < left + wide && Math.abs(y - t[2]) < 11) && !dots.some(([a, b]) => a > left - 3 && a < left + wide + 2 && Math.abs(b - y) < 8));
    if (!place) continue;
    taken.push([place[0], place[0] + wide, place[1]]);
    pen.font = "10px " + MONO; pen.lineWidth = 4; pen.lineJoin = "round"; pen.strokeStyle = colour.page; pen.strokeText(text, place[0], place[1]);
    pen.fillStyle = route.own ? colour.accent : colour.ink; pen.fillText(text, place[0], place[1]); pen.font = "11px " + MONO;
  }
  $("stage-hint").textContent = "Rows are lanes (CUDA streams), bars tasks, arrows waits: click one to see why it is there. Drag moves, Ctrl + wheel zooms."
    + (seen > chosen.length ? ` Of ${count(seen)} waits in view, ${count(chosen.length)} are drawn, those that held up most: zoom in for the others.` : "");
}
function strip(pen, data, top, height, paint, label, scale, left, right) { // live bytes as steps
  const most = Math.max(...sampled(data)), bottom = top + height;
  pen.save(); pen.beginPath(); pen.rect(left, top - 2, right - left, height + 4); pen.clip();
  pen.beginPath(); pen.moveTo(scale(0), bottom);
  let level = bottom, drawn = -1e9;
  for (let i = 0; i < data.times.length; i++) {
    const px = scale(data.times[i]);
    if (px > right + 2) break;
    const next = bottom - data.bytes[i] / most * (height - 4);
    if (px < left - 2 || px - drawn < 0.3) { level = next; if (px < left - 2) { pen.moveTo(left - 2, bottom); pen.lineTo(left - 2, level); drawn = px; } else pen.lineTo(px, next); continue; }
    pen.lineTo(px, level); pen.lineTo(px, next); level = next; drawn = px;
  }
  const last = Math.min(scale(end), right + 2);
  pen.lineTo(last, level); pen.lineTo(last, bottom); pen.closePath();
  pen.fillStyle = paint; pen.globalAlpha = 0.22; pen.fill(); pen.globalAlpha = 1; pen.strokeStyle = paint; pen.lineWidth = 1.4; pen.stroke();
  const at = data.times[data.bytes.indexOf(most)], px = scale(at);
  if (px >= left && px <= right) { pen.fillStyle = colour.ink; pen.fillRect(px - 0.5, top, 1, height); const text = "peak " + bytes(most), wide = text.length * character; const lx = px + 6 + wide < right ? px + 5 : px - 5 - wide; pen.lineWidth = 4; pen.lineJoin = "round"; pen.strokeStyle = colour.page; pen.strokeText(text, lx, top + 10); pen.fillText(text, lx, top + 10); }
  pen.restore();
  pen.strokeStyle = colour.line; pen.lineWidth = 1; pen.beginPath(); pen.moveTo(left, bottom + 0.5); pen.lineTo(right, bottom + 0.5); pen.stroke();
  pen.fillStyle = colour.quiet; pen.fillText(label + " memory", 4, top + 12); pen.fillText("0 to " + bytes(most), 4, top + 27);
  if (untyped[label]) pen.fillText(count(untyped[label]) + " untyped", 4, top + 42);
}
const placeOf = n => N[S.place[n]], untyped = Object.fromEntries(Object.keys(D.memory).map(place => [place, S.bytes.filter((size, n) => size === null && N[S.kind[n]] !== "resource" && placeOf(n) === place).length]));
const allUntyped = Object.values(untyped).reduce((a, b) => a + b, 0);
const elsewhere = n => placeOf(n) === "device" ? "" : placeOf(n); // than in the memory of the one device
const peaks = new Map();
function sampled(data) { if (!peaks.has(data)) peaks.set(data, [data.bytes.reduce((a, b) => Math.max(a, b), 0)]); return peaks.get(data); }

// ---- lifetimes of tensors ------------------------------------------------------------------------------------------------------------
const ROW = 18, rowsOf = Array.from(S.label.keys()).filter(n => usesIn.of(n).length);
function drawTensors() {
  const scroll = $("tensors-scroll"), total = rowsOf.length * ROW, height = Math.min(300, Math.max(ROW, total));
  $("tensors-room").style.height = total + "px";
  const [pen, width] = sheet($("tensors"), height);
  const firstRow = Math.floor(scroll.scrollTop / ROW), shift = scroll.scrollTop - firstRow * ROW, chosen = new Set(selected.task >= 0 ? Array.from(usesOf.of(selected.task), use => U.storage[use]) : []);
  if (selected.storage >= 0) chosen.add(selected.storage);
  for (let row = firstRow; row < rowsOf.length && (row - firstRow) * ROW < height + ROW; row++) {
    const storage = rowsOf[row], top = (row - firstRow) * ROW - shift, strong = chosen.has(storage);
    pen.save(); pen.beginPath(); pen.rect(GUTTER, top, boxes.right - GUTTER, ROW); pen.clip();
    pen.fillStyle = colour.life; pen.fillRect(x(S.start[storage]), top + 3, Math.max(1, x(S.end[storage]) - x(S.start[storage])), ROW - 6);
    spans(storage).forEach(([from, to, name]) => {
      const left = x(from), right = Math.max(left + 1, x(to));
      if (right < GUTTER || left > boxes.right) return;
      pen.fillStyle = strong ? colour.accent : colour.use; pen.fillRect(left, top + 3, right - left, ROW - 6);
      if (name && right - left > 30) { const text = fitted(name, Math.floor((right - left - 4) / character)); pen.fillStyle = colour.bar; pen.font = "bold 10px " + MONO; pen.fillText(text, Math.max(left, GUTTER) + 3, top + ROW / 2 + 0.5); pen.font = "11px " + MONO; }
    });
    pen.restore();
    pen.fillStyle = strong ? colour.accent : colour.ink; pen.fillText(fitted(S.label[storage], Math.floor((GUTTER - 8) / character)), 4, top + ROW / 2);
  }
}
const spanCache = new Map();
function spans(storage) { // one per occupant: from its first use to its last; at most 400, told apart no better on a screen
  if (!spanCache.has(storage)) {
    const by = new Map();
    for (const use of usesIn.of(storage)) {
      const task = U.task[use], turn = U.turn[use];
      if (task < 0) continue;
      const entry = by.get(turn);
      if (!entry) by.set(turn, [T.start[task], T.end[task], N[U.tensor[use]]]); else { entry[0] = Math.min(entry[0], T.start[task]); entry[1] = Math.max(entry[1], T.end[task]); }
    }
    const all = [...by.values()];
    if (all.length === 1) all[0][2] = "";
    spanCache.set(storage, all);
  }
  return spanCache.get(storage);
}

// ---- what is under the pointer -------------------------------------------------------------------------------------------------------
function under(px, py) {
  for (let lane = 0; lane < lanes; lane++) {
    if (py < laneTop(lane) - 1 || py > laneTop(lane) + BAR + 1 || px < GUTTER) continue;
    const all = laneTasks.of(lane), time = timeAt(px), reach = 2 * (view.to - view.from) / (boxes.right - GUTTER), at = first(all, time - reach, T.end);
    if (at < all.length && T.start[all[at]] <= time + reach) return { task: all[at] };
  }
  let best = 6, found = {};
  for (const { wait, points: p } of drawnArrows) for (let step = 0; step <= 24; step++) {
    const [a, b] = along4(p, step / 24), far = Math.hypot(px - a, py - b);
    if (far < best) { best = far; found = { wait }; }
  }
  return found;
}
function tell(event, text) {
  const tip = $("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18) + "px";
}
function said(thing) {
  if (thing.task >= 0) { const t = thing.task; return `${T.name[t]}\n${span(T.end[t] - T.start[t])}, ${span(T.start[t])} to ${span(T.end[t])}\n${heldSaid(t)}`; }
  if (thing.wait >= 0) { const w = thing.wait; return `${who(W.to[w]) || laneName(W.lane[w])} waits for ${who(W.from[w])}\n${W.why[w].map(why).join(", ")}\n${held(w) > 0 ? "held the lane for " + span(held(w)) : "was done already: held nothing up"}`; }
  return "";
}
function heldSaid(task) {
  const name = T.after[task] >= 0 ? " " + T.name[T.after[task]] : "";
  return { FIFO: "started right after" + name + " on its lane", wait: "started when" + (name || " the event") + " was done", issue: "started when the host issued it" + (name ? ", which had waited for" + name : ""), engine: "started when the copy engine was free, after" + name }[N[T.held[task]]] || "started at once";
}
function mover(canvas, move, click) { // drag moves, a click that did not move selects
  let last = null, moved = 0;
  canvas.addEventListener("pointerdown", event => { if (event.button) return; last = [event.clientX, event.clientY]; moved = 0; });
  addEventListener("pointermove", event => { if (!last) return; moved += Math.abs(event.clientX - last[0]) + Math.abs(event.clientY - last[1]); if (moved > 4) { canvas.classList.add("moving"); tell(event, ""); move(event.clientX - last[0], event.clientY - last[1]); } last = [event.clientX, event.clientY]; });
  addEventListener("pointerup", event => { if (last && moved <= 4 && event.target === canvas) click(event.offsetX, event.offsetY); last = null; canvas.classList.remove("moving"); });
}
mover(stage, dx => pan(-dx * (view.to - view.from) / (boxes.right - GUTTER)), (px, py) => { if (py > memoryTop && px > GUTTER && places.length) { memoryTime = Math.max(0, Math.min(end, timeAt(px))); show("memory"); } else select(under(px, py)); });
stage.addEventListener("pointermove", event => tell(event, said(under(event.offsetX, event.offsetY))));
stage.addEventListener("pointerleave", event => tell(event, ""));
stage.addEventListener("wheel", event => { if (event.ctrlKey || event.metaKey || event.altKey) { event.preventDefault(); zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), timeAt(event.offsetX)); } else if (event.deltaX || event.shiftKey) { event.preventDefault(); pan((event.deltaX || event.deltaY) * (view.to - view.from) / (boxes.right - GUTTER)); } }, { passive: false });
stage.addEventListener("dblclick", event => { const { task } = under(event.offsetX, event.offsetY); if (task >= 0) { view.from = T.start[task] - (T.end[task] - T.start[task]); view.to = T.end[task] + (T.end[task] - T.start[task]) + 1e-3; draw(); } });
$("tensors-scroll").addEventListener("scroll", drawTensors);
$("tensors").addEventListener("pointermove", event => { const storage = rowsOf[Math.floor((event.offsetY + $("tensors-scroll").scrollTop) / ROW)]; tell(event, storage === undefined ? "" : `${S.label[storage]}: ${storageSaid(storage)}`); });
$("tensors").addEventListener("pointerleave", event => tell(event, ""));
$("tensors").addEventListener("click", event => { const storage = rowsOf[Math.floor((event.offsetY + $("tensors-scroll").scrollTop) / ROW)]; if (storage !== undefined) select({ storage }); });

// ---- the panel -----------------------------------------------------------------------------------------------------------------------
function facts(pairs) { const list = el("dl"); for (const [key, value] of pairs) if (value || value === 0) list.append(el("dt", {}, key), el("dd", { class: "mono" }, value)); return list; }
const storageSaid = n => [N[S.kind[n]], N[S.type[n]], S.bytes[n] === null ? "" : bytes(S.bytes[n]), elsewhere(n) && elsewhere(n) + " memory", S.output.includes(n) ? "output" : ""].filter(Boolean).join(", ");
function linkSaid(entry) { return entry[2] === NOBODY ? `same lane @${laneName(T.lane[entry[1]])}` : `wait ${N[W.event[entry[2]]]} @${laneName(W.lane[entry[2]])}`; }
function relationItem(relation, earlier) {
  const item = el("li", {}), hazards = relation.hazards.map(why).join(", ");
  const tag = { wait: "wait", "same lane": "no wait", implied: "no wait", "may overlap": "NOT ORDERED" }[relation.verdict];
  item.append(el("span", { class: "tag " + (relation.verdict === "wait" ? "wait" : "none") }, tag), taskLink(relation.other), el("span", {}, " " + hazards));
  const at = relation.links[0];
  if (relation.verdict === "wait") item.append(el("p", {}, link(linkSaid(at), () => select({ wait: at[2] }, true)), held(at[2]) > 0 ? `: held ${laneName(W.lane[at[2]])} for ${span(held(at[2]))}` : ": done by then, held nothing up"));
  else if (relation.verdict === "same lane") item.append(el("p", {}, `both are on ${laneName(T.lane[at[1]])}, which runs its tasks in order`));
  else if (relation.verdict === "implied") item.append(el("p", {}, "implied by ", ...relation.links.flatMap((entry, i) => [i ? ", " : "", `${who(entry[0])} → ${who(entry[1])} (${linkSaid(entry)})`])));
  return item;
}
function limited(items, make, limit = 60) { const list = el("ul"); items.slice(0, limit).forEach(item => list.append(make(item))); if (items.length > limit) list.append(el("li", {}, `and ${count(items.length - limit)} more`)); return list; }
function panel() {
  const box = $("panel");
  box.replaceChildren();
  box.scrollTop = 0;
  if (selected.task >= 0) taskPanel(box, selected.task); else if (selected.wait >= 0) waitPanel(box, selected.wait); else if (selected.storage >= 0) storagePanel(box, selected.storage); else overview(box);
}
function taskPanel(box, task) {
  const uses = Array.from(usesOf.of(task)), file = T.file[task] >= 0 ? T.files[T.file[task]] + (T.line[task] ? ":" + T.line[task] : "") : "";
  box.append(el("h2", {}, T.name[task]), facts([
    ["runs", N[T.operator[task]]], ["on", `${laneName(T.lane[task])}${T.pinned.includes(task) ? " (pinned)" : ""}${T.urgent.includes(task) ? ", urgent" : ""}, ${N[T.engine[task]]}`],
    ["time", span(T.end[task] - T.start[task]) + (T.end[task] - T.start[task] > T.alone[task] * 1.005 ? ", alone " + span(T.alone[task]) : "") + ` (${N[T.source[task]] === "default" ? "guessed" : N[T.source[task]]})`], ["from", `${span(T.start[task])} to ${span(T.end[task])}`],
    ["issued", D.lanes[T.lane[task]][3] ? "" : "at " + span(T.issued[task])], ["declared", file ? (D.specIsOwn && T.line[task] ? link(file, () => show("spec")) : file) : ""], ["note", T.notes[task] || ""],
  ]));
  box.append(el("p", { class: "hint" }, heldSaid(task) + (critical[task] ? ". On the critical path." : ".")));
  const into = relations(task, true), direct = new Set(into.map(relation => relation.other));
  const others = Array.from(waitsOf.of(task)).filter(wait => previous[wait] || !direct.has(W.from[wait]));
  const waiting = into.filter(relation => relation.verdict === "wait"), dropped = into.filter(relation => relation.verdict !== "wait");
  box.append(el("h3", {}, waiting.length + others.length ? `Waits for ${waiting.length + others.length}` : "Waits for nothing"));
  const list = limited(waiting, relation => relationItem(relation));
  for (const wait of others) list.append(el("li", {}, el("span", { class: "tag wait" }, "wait"), link(N[W.event[wait]], () => select({ wait }, true)), previous[wait] ? " of the run before" : W.from[wait] === ENTRY ? " entry: all that the caller issued before is done" : " " + who(W.from[wait])));
  box.append(list);
  if (dropped.length) box.append(el("h3", {}, `Ordered without a wait: ${dropped.length}`), limited(dropped, relation => relationItem(relation)));
  const out = relations(task, false);
  if (out.length) box.append(el("h3", {}, `Comes before ${out.length}`), limited(out, relation => relationItem(relation)));
  for (const [mode, word] of [[0, "Reads"], [2, "Updates"], [1, "Writes"]]) {
    const its = uses.filter(use => U.mode[use] === mode);
    if (its.length) box.append(el("h3", {}, word), limited(its, use => el("li", {}, link(N[U.tensor[use]], () => select({ storage: U.storage[use] })), el("p", {}, (S.label[U.storage[use]] === N[U.tensor[use]] ? "" : S.label[U.storage[use]] + ": ") + storageSaid(U.storage[use])))));
  }
}
function waitPanel(box, wait) {
  box.append(el("h2", {}, `Wait ${wait + 1} of ${count(waits)}: ${N[W.event[wait]]}`), facts([
    ["lane", laneName(W.lane[wait])], ["before", W.to[wait] >= 0 ? taskLink(W.to[wait]) : W.to[wait] === HOST ? "the run ends" : W.to[wait] === EXIT ? "exit" : "the lane's end"],
    ["for", W.from[wait] >= 0 ? taskLink(W.from[wait]) : who(W.from[wait])], ["on", laneName(W.fromLane[wait])],
    ["held", held(wait) > 0 ? `${span(held(wait))}, from ${span(W.since[wait])} to ${span(W.until[wait])}` : "nothing up: done by then"], ["critical", criticalWait[wait] ? "yes: it sets the makespan" : ""],
  ]));
  box.append(el("h3", {}, "Why"), limited(W.why[wait], reason => el("li", {}, el("span", { class: "tag none" }, N[reason[0]]), N[reason[1]], el("p", {}, taskLink(reason[2]), " → ", taskLink(reason[3])))));
}
function storagePanel(box, storage) {
  const uses = Array.from(usesIn.of(storage)).filter(use => U.task[use] >= 0).sort((a, b) => U.turn[a] - U.turn[b] || U.task[a] - U.task[b]);
  box.append(el("h2", {}, S.label[storage]), facts([["is", storageSaid(storage)], ["live", `${span(S.start[storage])} to ${span(S.end[storage])}`]]), el("h3", {}, `Used ${many(uses.length, "time")}`));
  box.append(limited(uses, use => el("li", {}, el("span", { class: "tag none" }, ["reads", "writes", "updates"][U.mode[use]]), taskLink(U.task[use]), el("p", {}, `${N[U.tensor[use]]}, on ${laneName(T.lane[U.task[use]])}`))));
}
const BOUNDS = { span: "the longest path of hazards", lanes: "the tasks of the busiest lane", device: "what the device's units have to do", bandwidth: "what its memory has to move", h2d: "the copies to the device", d2h: "the copies to the host", host: "the host's calls" };
function overview(box) {
  box.append(el("h2", {}, "How to read this"), el("p", { class: "hint" }, "Every lane is one CUDA stream: it runs its tasks in order, and side by side with the other lanes. A task waits for another lane only where both touch the same memory. Select a task to see each such order: with a wait of its own, or without one, and why that is safe."));
  const legend = el("ul"), seen = new Set();
  for (const [name, paint, lean] of T.paints) { if (seen.has(name)) continue; seen.add(name); const mark = el("span", { class: "swatch h" + lean }); mark.style.backgroundColor = paint; legend.append(el("li", {}, mark, name)); }
  if (D.bands.length) legend.append(el("li", {}, "tints: iterations"));
  legend.append(el("li", {}, el("span", { class: "swatch crit" }), "critical path: sets the makespan"), el("li", {}, el("span", { class: "swatch idle" }), "idle lane"));
  box.append(el("h3", {}, "Colours"), legend);
  const sources = Object.entries(D.sources).map(([kind, n]) => `${count(n)} ${kind === "default" ? "guessed from sizes" : kind}`).join(", ");
  box.append(el("h3", {}, "Where times come from"), el("p", { class: "hint" }, `Simulated from ${D.basis}: nothing was measured here. Times of tasks: ${sources || "none"}. No run on these lanes can beat ${span(D.bound[1])}: ${BOUNDS[D.bound[0]] || D.bound[0]}.`));
  if (D.notes.length) box.append(el("h3", {}, "Notes"), limited(D.notes, note => el("li", {}, note)));
  if (T.critical.length) box.append(el("h3", {}, `Critical path: ${many(T.critical.length, "task")}`), limited(T.critical, task => el("li", {}, taskLink(task), el("p", {}, span(T.end[task] - T.start[task]))), 40));
  if (D.options.length) box.append(el("h3", {}, "Planned with"), facts(D.options));
}
function select(thing, show) {
  selected = thing.task >= 0 || thing.wait >= 0 || thing.storage >= 0 ? thing : {};
  if (show && selected.task >= 0) bring(T.start[selected.task], T.end[selected.task]);
  if (show && selected.wait >= 0) { const [from, , to] = ends(selected.wait); bring(Math.min(from, to), Math.max(from, to)); }
  if (selected.storage >= 0 || selected.task >= 0) { const storage = selected.storage >= 0 ? selected.storage : U.storage[usesOf.of(selected.task)[0]], row = rowsOf.indexOf(storage), box = $("tensors-scroll"); if (row >= 0 && (row * ROW < box.scrollTop || (row + 1) * ROW > box.scrollTop + box.clientHeight)) box.scrollTop = row * ROW - 60; }
  root.dataset.selected = selected.task >= 0 ? T.name[selected.task] : selected.wait >= 0 ? "wait " + selected.wait : selected.storage >= 0 ? S.label[selected.storage] : "";
  $("live").textContent = selected.storage >= 0 ? `${S.label[selected.storage]}: ${storageSaid(selected.storage)}` : said(selected).replaceAll("\n", ". ");
  panel(); redraw();
}

// ---- graph ---------------------------------------------------------------------------------------------------------------------------
const G = D.graph, dag = $("dag"), WIDE = 150, HIGH = 24, ACROSS = 210, DOWN = 40;
const camera = { scale: 0, left: 0, top: 0 };
const boxAt = G.label.map((_, n) => [G.layer[n] * ACROSS, G.place[n] * DOWN]);
const boxOf = new Map();
G.tasks.forEach((its, box) => its.forEach(task => boxOf.set(task, box)));
const span2 = boxAt.reduce((m, [, y]) => [Math.min(m[0], y), Math.max(m[1], y + HIGH + 14)], [0, HIGH]);
const graphHeight = () => Math.max(200, Math.min(innerHeight - 220, (span2[1] - span2[0]) * Math.max(camera.scale, 1) + 60));
function fitGraph() {
  const [top, bottom] = span2, right = boxAt.reduce((most, [at]) => Math.max(most, at + WIDE), WIDE), width = dag.clientWidth - 24, height = graphHeight() - 24;
  camera.scale = Math.max(Math.min(1.2, height / (bottom - top), width / right), Math.min(0.8, height / (bottom - top)), 0.02); camera.left = 12; camera.top = (height - (bottom + top) * camera.scale) / 2 + 12;
}
function drawGraph() {
  if ($("graph").hidden) return;
  if (!camera.scale) fitGraph();
  const [pen, width] = sheet(dag, graphHeight()), height = graphHeight(), s = camera.scale, px = v => camera.left + v * s, py = v => camera.top + v * s;
  const chosen = boxOf.get(selected.task);
  let crossing = 0;
  for (let i = 0; i < G.edges.length; i += 2) {
    const a = boxAt[G.edges[i]], b = boxAt[G.edges[i + 1]], x0 = px(a[0] + WIDE), x1 = px(b[0]), y0 = py(a[1] + HIGH / 2), y1 = py(b[1] + HIGH / 2);
    if (Math.max(x0, x1) < 0 || Math.min(x0, x1) > width || Math.max(y0, y1) < 0 || Math.min(y0, y1) > height) continue;
    const from = G.tasks[G.edges[i]][0], to = G.tasks[G.edges[i + 1]][0], cross = T.lane[from] !== T.lane[to], own = chosen !== undefined && (G.edges[i] === chosen || G.edges[i + 1] === chosen);
    crossing += cross;
    pen.strokeStyle = own ? colour.hot : cross ? colour.accent : colour.free; pen.lineWidth = own ? 2.4 : cross ? 1.6 : 1;
    const bend = Math.max(20 * s, (x1 - x0) / 2);
    pen.beginPath(); pen.moveTo(x0, y0); pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1); pen.stroke();
    if (s > 0.3) { pen.fillStyle = pen.strokeStyle; pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x1 - 7 * s, y1 - 3.5 * s); pen.lineTo(x1 - 7 * s, y1 + 3.5 * s); pen.fill(); }
  }
  pen.textAlign = "center";
  for (let box = 0; box < boxAt.length; box++) {
    const left = px(boxAt[box][0]), top = py(boxAt[box][1]), wide = WIDE * s, high = HIGH * s, task = G.tasks[box][0];
    if (left + wide < 0 || left > width || top + high < 0 || top > height) continue;
    pen.fillStyle = task >= 0 ? T.paints[T.paint[task]][1] : colour.soft; pen.fillRect(left, top, wide, high);
    if (task >= 0 && hatchOf(T.paint[task])) { pen.fillStyle = hatches[hatchOf(T.paint[task])]; pen.fillRect(left, top, wide, high); }
    const hot = G.tasks[box].some(t => t >= 0 && critical[t]), hit = matches.length && matches.some((m, i) => i < 2000 && G.tasks[box].includes(m.task));
    if (hot || hit || box === chosen) { pen.strokeStyle = box === chosen ? colour.accent : hit ? colour.mark : colour.hot; pen.lineWidth = box === chosen ? 4 : 2.5; pen.strokeRect(left, top, wide, high); }
    if (s > 0.42) { pen.font = Math.round(11 * Math.min(1.2, s) * 10) / 10 + "px " + MONO; pen.fillStyle = "#111"; pen.fillText(fitted(G.label[box], Math.floor(wide / (character * Math.min(1.2, s)) - 1)), left + wide / 2, top + high / 2); }
    if (s > 0.6 && task >= 0) { pen.font = "10px " + MONO; pen.fillStyle = colour.quiet; pen.fillText(laneName(T.lane[task]), left + wide / 2, top + high + 7); }
  }
  pen.textAlign = "left";
}
function zoomGraph(factor, cx = dag.clientWidth / 2, cy = graphHeight() / 2) { const scale = Math.max(0.02, Math.min(4, camera.scale / factor)), by = scale / camera.scale; camera.left = cx - (cx - camera.left) * by; camera.top = cy - (cy - camera.top) * by; camera.scale = scale; drawGraph(); }
function graphUnder(cx, cy) { const gx = (cx - camera.left) / camera.scale, gy = (cy - camera.top) / camera.scale, box = boxAt.findIndex(([bx, by]) => gx >= bx && gx <= bx + WIDE && gy >= by && gy <= by + HIGH); return box < 0 ? {} : { task: G.tasks[box][0], box }; }
mover(dag, (dx, dy) => { camera.left += dx; camera.top += dy; drawGraph(); }, (cx, cy) => select(graphUnder(cx, cy)));
dag.addEventListener("wheel", event => { if (event.ctrlKey || event.metaKey || event.altKey) { event.preventDefault(); zoomGraph(Math.exp(event.deltaY * 0.003), event.offsetX, event.offsetY); } }, { passive: false });
dag.addEventListener("pointermove", event => { const thing = graphUnder(event.offsetX, event.offsetY); tell(event, thing.box === undefined ? "" : G.tasks[thing.box].length > 1 ? G.label[thing.box] : said(thing)); });
dag.addEventListener("pointerleave", event => tell(event, ""));
$("graph-hint").textContent = G.label.length ? `Who comes before whom: boxes are tasks, edges orders that the program needs, blue across lanes. ${many(G.hidden, "edge")} that others imply ${G.hidden === 1 ? "is" : "are"} hidden.${G.note ? " " + G.note + "." : ""}` : G.note;
function toGraph(task) { const box = boxOf.get(task); if (box === undefined || !camera.scale) return; const [bx, by] = boxAt[box], left = camera.left + bx * camera.scale, top = camera.top + by * camera.scale; if (left < 0 || left + WIDE * camera.scale > dag.clientWidth || top < 0 || top > graphHeight()) { camera.left = dag.clientWidth / 2 - (bx + WIDE / 2) * camera.scale; camera.top = graphHeight() / 2 - by * camera.scale; } }

// ---- memory --------------------------------------------------------------------------------------------------------------------------
const curveCanvas = $("curve");
let memoryTime = null;
const peakTime = () => { const data = D.memory[places[0] || "host"], most = sampled(data)[0]; return data.times.length ? data.times[data.bytes.indexOf(most)] : 0; };
function drawMemory() {
  if ($("memory").hidden) return;
  const time = memoryTime === null ? peakTime() : memoryTime, high = places.length > 1 ? 150 : 230, [pen, width] = sheet(curveCanvas, 26 + places.length * (high + 14)), right = width - 12, scale = t => GUTTER + t / end * (right - GUTTER);
  let top = 22;
  pen.fillStyle = colour.quiet; pen.textAlign = "center"; for (let i = 0; i <= 5; i++) pen.fillText(i ? span(end * i / 5) : "0", Math.min(scale(end * i / 5), right - 22), 10); pen.textAlign = "left";
  for (const place of places) { strip(pen, D.memory[place], top, high, paintOf(place), place, scale, GUTTER, right); top += high + 14; }
  pen.strokeStyle = colour.hot; pen.lineWidth = 2; pen.beginPath(); pen.moveTo(scale(time), 18); pen.lineTo(scale(time), top - 12); pen.stroke();
  owners(time);
}
function owners(time) {
  const live = [], rows = $("owners").tBodies[0];
  let total = 0;
  for (let n = 0; n < S.label.length; n++) {
    if (S.bytes[n] === null) continue;
    if (S.start[n] <= time && (time < S.end[n] || S.end[n] >= end)) { live.push(n); total += S.bytes[n]; }
  }
  live.sort((a, b) => S.bytes[b] - S.bytes[a] || a - b);
  rows.replaceChildren(...live.slice(0, 200).map(n => {
    const bar = el("span", { class: "share" });
    bar.style.width = 120 * S.bytes[n] / (S.bytes[live[0]] || 1) + "px";
    return el("tr", {}, el("td", {}, link(S.label[n], () => select({ storage: n }))), el("td", {}, N[S.type[n]] + (elsewhere(n) ? ` (${elsewhere(n)})` : "")), el("td", { class: "n" }, bytes(S.bytes[n])), el("td", {}, bar, ` ${Math.round(100 * S.bytes[n] / (total || 1))}%`), el("td", { class: "n" }, span(S.start[n])), el("td", { class: "n" }, span(S.end[n])));
  }));
  $("owners-title").textContent = `Live at ${span(time)}${memoryTime === null ? " (the peak)" : ""}: ${bytes(total)} in ${many(live.length, "tensor")}${live.length > 200 ? ", the 200 largest" : ""}`;
  $("memory-hint").textContent = `Bytes of values, inputs and buffers that are live, by declared types. ${allUntyped ? many(allUntyped, "tensor") + " without a type count as nothing. " : ""}Click into the curve, or use ← and →, for another moment.`;
}
curveCanvas.addEventListener("click", event => { memoryTime = Math.max(0, Math.min(end, (event.offsetX - GUTTER) / (curveCanvas.clientWidth - 12 - GUTTER) * end)); drawMemory(); });

// ---- tables and texts ------------------------------------------------------------------------------------------------------------------
const columns = [
  ["Wait", w => N[W.event[w]], w => w], ["Task that waits", w => W.to[w] >= 0 ? T.name[W.to[w]] : W.to[w] === NOBODY ? "the lane's end" : W.to[w] === HOST ? "host: the run ends" : "exit"], ["On lane", w => laneName(W.lane[w])],
  ["Waits for", w => who(W.from[w])], ["On lane", w => laneName(W.fromLane[w])], ["Because of", w => W.why[w].map(why).join(", ")], ["Held", w => span(held(w)), held, 1], ["Done at", w => span(W.at[w]), w => W.at[w], 1],
];
let sorting = [0, 1], limit = 300, tableReady = false;
columns.forEach(([title, , , right], n) => $("waits-table").tHead.rows[0].append(el("th", { scope: "col", class: right ? "n" : "", "aria-sort": n ? "none" : "ascending" }, el("button", { type: "button", onclick: () => { sorting = [n, sorting[0] === n ? -sorting[1] : right ? -1 : 1]; table(); } }, title))));
function table() {
  tableReady = true;
  const text = $("filter").value.trim().toLowerCase(), [column, way] = sorting, key = columns[column][2] || columns[column][1];
  let rows = Array.from({ length: waits }, (_, wait) => wait);
  if (text) rows = rows.filter(wait => columns.some(([, show]) => show(wait).toLowerCase().includes(text)));
  const keys = new Map(rows.map(wait => [wait, key(wait)]));
  rows.sort((a, b) => { const p = keys.get(a), q = keys.get(b); return (typeof p === "number" ? p - q : p < q ? -1 : p > q ? 1 : 0) * way || a - b; });
  $("waits-table").tBodies[0].replaceChildren(...rows.slice(0, limit).map(wait => el("tr", { "data-wait": wait, class: wait === selected.wait ? "here" : "" }, ...columns.map(([, show, , right], n) => el("td", { class: right ? "n" : "" }, n ? show(wait) : link(show(wait), () => select({ wait }, true)))))));
  [...$("waits-table").tHead.rows[0].cells].forEach((cell, n) => cell.setAttribute("aria-sort", n !== column ? "none" : way > 0 ? "ascending" : "descending"));
  $("rows").textContent = `${count(Math.min(limit, rows.length))} of ${count(rows.length)}`;
  $("more").hidden = rows.length <= limit;
}
$("filter").addEventListener("input", table);
$("more").addEventListener("click", () => { limit *= 4; table(); });
function plan() {
  if ($("steps").textContent) return;
  $("plan-hint").textContent = D.steps ? `The ${count(D.stepCount)} steps in the order in which the host issues them, each with its reason. ${D.python ? "" : "streamgraph plan --as python prints them as torch code."}` : `${count(D.stepCount)} steps are too many for a page: streamgraph plan --steps prints them.`;
  $("steps").textContent = D.steps ? D.steps.join("\n") : "(left out)";
  if (D.python) { $("python").textContent = D.python; $("python").hidden = $("python-title").hidden = false; }
}
function spec() {
  const list = $("source");
  if (!list.children.length) {
    $("spec-hint").textContent = D.spec === null ? "The spec is left out: it is too long for a page, or cannot be written as YAML." : D.specIsOwn ? "The spec as it was written." : "The program in canonical form: expanded, without parameters.";
    if (D.spec !== null) list.append(...D.spec.split("\n").map(line => el("li", {}, line)));
  }
  for (const line of list.querySelectorAll(".here")) line.classList.remove("here");
  const line = D.specIsOwn && selected.task >= 0 ? list.children[T.line[selected.task] - 1] : null;
  if (line) { line.classList.add("here"); line.scrollIntoView({ block: "center" }); }
}

// ---- views, search, keys -----------------------------------------------------------------------------------------------------------------
const tabs = [...document.querySelectorAll("[role=tab]")];
let current = "timeline";
function show(name) {
  current = name;
  for (const tab of tabs) { const on = tab.id === "tab-" + name; tab.setAttribute("aria-selected", String(on)); tab.tabIndex = on ? 0 : -1; $(tab.id.slice(4)).hidden = !on; }
  root.dataset.view = name;
  redraw();
}
function redraw() { draw(); drawGraph(); drawMemory(); if (current === "waits") table(); if (current === "plan") plan(); if (current === "spec") spec(); if (current === "graph" && selected.task >= 0) { toGraph(selected.task); drawGraph(); } }
tabs.forEach((tab, n) => {
  tab.addEventListener("click", () => show(tab.id.slice(4)));
  tab.addEventListener("keydown", event => { const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: tabs.length - 1 }[event.key]; if (to === undefined) return; event.preventDefault(); event.stopPropagation(); const other = tabs[(to + tabs.length) % tabs.length]; show(other.id.slice(4)); other.focus(); });
});
function find() {
  const text = $("find").value.trim().toLowerCase();
  matches = []; match = -1;
  if (text) {
    for (let task = 0; task < tasks; task++) if (T.name[task].toLowerCase().includes(text) || N[T.operator[task]].toLowerCase().includes(text)) matches.push({ task });
    for (const storage of rowsOf) if (S.label[storage].toLowerCase().includes(text)) matches.push({ storage });
  }
  $("found").textContent = text ? many(matches.length, "match").replace("matchs", "matches") : "";
  redraw();
}
function nextMatch(way) { if (!matches.length) return; match = (match + way + matches.length) % matches.length; select(matches[match], true); $("found").textContent = `${count(match + 1)} of ${count(matches.length)}`; }
$("find").addEventListener("input", find);
$("search").addEventListener("submit", event => event.preventDefault());
$("find").addEventListener("keydown", event => { if (event.key === "Enter") { event.preventDefault(); nextMatch(event.shiftKey ? -1 : 1); } else if (event.key === "Escape") { $("find").value = ""; find(); stage.focus(); event.stopPropagation(); } });
const middle = () => { const { task } = selected; return task >= 0 && T.end[task] >= view.from && T.start[task] <= view.to ? (T.start[task] + T.end[task]) / 2 : (view.from + view.to) / 2; };
const nearer = factor => current === "graph" ? zoomGraph(factor) : zoom(factor, middle());
$("in").addEventListener("click", () => nearer(0.6));
$("out").addEventListener("click", () => nearer(1 / 0.6));
const all = () => { if (current === "graph") { fitGraph(); drawGraph(); } else if (current === "memory") { memoryTime = null; drawMemory(); } else fit(); };
$("fit").addEventListener("click", all);
function help() { $("keys").hidden = !$("keys").hidden; $("help").setAttribute("aria-expanded", String(!$("keys").hidden)); }
$("help").addEventListener("click", help);
function step(way) { if (!waits) return; const at = selected.wait >= 0 ? selected.wait : selected.task >= 0 && waitsOf.of(selected.task).length ? waitsOf.of(selected.task)[0] - way : way > 0 ? -1 : waits; select({ wait: (at + way + waits) % waits }, true); }
function along(way) { const task = selected.task >= 0 ? (way > 0 ? after[selected.task] : before[selected.task]) : laneTasks.of(D.main)[0] ?? 0; if (task >= 0 && task < tasks) select({ task }, true); }
function sideways(way) {
  if (!(selected.task >= 0)) { along(1); return; }
  const time = (T.start[selected.task] + T.end[selected.task]) / 2;
  for (let lane = T.lane[selected.task] + way; lane >= 0 && lane < lanes; lane += way) { const its = laneTasks.of(lane); if (its.length) { select({ task: its[Math.min(its.length - 1, first(its, time, T.end))] }, true); return; } }
}
const keys = {
  "+": () => nearer(0.6), "=": () => nearer(0.6), "-": () => nearer(1 / 0.6), 0: all, "/": () => { $("find").focus(); $("find").select(); }, "?": help, j: () => step(1), k: () => step(-1), n: () => along(1), p: () => along(-1), Escape: () => select({}),
  ArrowUp: () => sideways(-1), ArrowDown: () => sideways(1), ArrowLeft: () => sidewaysIn(-1), ArrowRight: () => sidewaysIn(1),
};
function sidewaysIn(way) { if (current === "graph") { camera.left -= way * 80; drawGraph(); } else if (current === "memory") { memoryTime = Math.max(0, Math.min(end, (memoryTime === null ? peakTime() : memoryTime) + way * end / 100)); drawMemory(); } else pan(way * (view.to - view.from) * 0.15); }
tabs.forEach((tab, n) => { keys[n + 1] = () => show(tab.id.slice(4)); });
addEventListener("keydown", event => {
  const tag = event.target.tagName, canvas = tag === "CANVAS" || event.target === document.body;
  if (event.ctrlKey || event.metaKey || event.altKey || tag === "INPUT") return;
  if (event.key.startsWith("Arrow") && !canvas) return; // arrows scroll what scrolls
  const act = Object.hasOwn(keys, event.key) ? keys[event.key] : null;
  if (act) { event.preventDefault(); act(); }
});

// ---- begin -----------------------------------------------------------------------------------------------------------------------------
function head() {
  $("name").textContent = D.name;
  $("lead").textContent = D.counts;
  const devices = D.lanes.filter(lane => !lane[3]), busy = devices.reduce((sum, lane) => sum + lane[2], 0);
  const figures = [[span(D.makespan), "makespan, simulated"], [D.speedUp.toFixed(2) + "×", `as fast as on one stream (${span(D.oneStream)})`], [devices.length && D.makespan ? Math.round(100 * busy / devices.length / D.makespan) + " %" : "0 %", "of the lanes' time busy"], [count(D.waits), `waits for ${many(H.earlier.length, "hazard")}`], [count(D.records), "record_stream"]];
  for (const place of places) if (place !== "host") figures.push([bytes(sampled(D.memory[place])[0]), place + " memory at the peak"]);
  $("figures").append(...figures.map(([figure, words]) => el("li", {}, el("b", {}, figure), el("span", {}, words))));
}
theme(); head(); panel(); view.from = -end * 0.012; view.to = end * 1.02; show("timeline");
document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); show("waits"); $("waits-table").parentElement.focus(); });
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme:dark)").addEventListener("change", () => { theme(); redraw(); });
addEventListener("beforeprint", () => { table(); theme(); redraw(); });
addEventListener("afterprint", () => { theme(); redraw(); });
root.dataset.tasks = tasks; root.dataset.waits = waits; root.dataset.milliseconds = Math.round(performance.now() - begun); root.dataset.ready = "true";
