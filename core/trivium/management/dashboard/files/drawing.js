// Bindings drawn as SVG: what leads where, by which key. What is drawn stands beside it as a table.

import { h, s } from "./dom.js";
import { link } from "./router.js";

// More than this is no picture any more.
export const MOST_NODES = 60;
export const MOST_EDGES = 150;

const WIDTH = 165;
const HEIGHT = 34;
const GAP = 14;
const BETWEEN = 135;
const EDGE = 10;

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const id = (type, name) => `${type} ${name}`;

// The page of something that is drawn.
const page = {
  exchange: (vhost, name) => link("exchanges", vhost, name || "amq.default"),
  queue: (vhost, name) => link("queues", vhost, name),
  session: (vhost, name) => link("sessions", vhost, name),
  stream: (vhost, name) => link("streams", vhost, name),
};

// What of the bindings is drawn: { nodes, edges, isWhole, start }. With `around` (the name of an exchange)
// only what leads to it, and all that can be reached from it; its node is `start`.
export function graphOf(bindings, around) {
  const nodes = new Map();
  const edges = [];
  const node = (type, name) => {
    const key = id(type, name);
    if (!nodes.has(key)) nodes.set(key, { key, type, name, out: [], depth: 0 });
    return nodes.get(key);
  };
  let isWhole = true;
  const add = (binding) => {
    const ends = [["exchange", binding.source], [binding.destination_type, binding.destination]];
    const fresh = ends.filter(([type, name]) => !nodes.has(id(type, name))).length;
    if (edges.length >= MOST_EDGES || nodes.size + fresh > MOST_NODES) {
      isWhole = false;
      return;
    }
    const [from, to] = ends.map((end) => node(...end));
    const known = from.out.find((each) => each.to === to);
    if (known) {
      known.keys.push(binding.key);
      return;
    }
    const edge = { from, to, keys: [binding.key] };
    from.out.push(edge);
    edges.push(edge);
  };
  if (around === undefined) {
    bindings.forEach(add);
  } else {
    node("exchange", around);
    const bySource = Map.groupBy ? Map.groupBy(bindings, (each) => each.source) : grouped(bindings);
    const reached = new Set([around]);
    for (const name of reached) {
      for (const binding of bySource.get(name) ?? []) {
        add(binding);
        if (binding.destination_type === "exchange") reached.add(binding.destination);
      }
    }
    bindings.filter((each) => each.destination_type === "exchange" && each.destination === around && !reached.has(each.source)).forEach(add);
  }
  layer([...nodes.values()]);
  return { nodes: [...nodes.values()], edges, isWhole, start: nodes.get(id("exchange", around)) };
}

function grouped(bindings) {
  const found = new Map();
  for (const each of bindings) found.set(each.source, [...(found.get(each.source) ?? []), each]);
  return found;
}

// Each stands right of what leads to it; what leads around in a circle does not count.
function layer(nodes) {
  const under = new Set();
  const done = new Set();
  const order = [];
  const visit = (node) => {
    if (done.has(node)) return;
    under.add(node);
    for (const edge of node.out) {
      edge.isBack = under.has(edge.to);
      if (!edge.isBack) visit(edge.to);
    }
    under.delete(node);
    done.add(node);
    order.unshift(node);
  };
  nodes.filter((each) => each.type === "exchange").forEach(visit);
  for (const node of order) {
    for (const edge of node.out) if (!edge.isBack) edge.to.depth = Math.max(edge.to.depth, node.depth + 1);
  }
  // Where messages stay they stand in the last column.
  const last = Math.max(1, ...nodes.map((each) => each.depth));
  for (const node of nodes) if (node.type !== "exchange") node.depth = last;
}

function place(nodes) {
  const columns = new Map();
  for (const node of nodes) {
    if (!columns.has(node.depth)) columns.set(node.depth, []);
    columns.get(node.depth).push(node);
  }
  const tallest = Math.max(...[...columns.values()].map((each) => each.length));
  const height = tallest * (HEIGHT + GAP) - GAP + 2 * EDGE;
  for (const [depth, column] of columns) {
    const top = (height - column.length * (HEIGHT + GAP) + GAP) / 2;
    column.forEach((node, index) => {
      node.x = EDGE + depth * (WIDTH + BETWEEN);
      node.y = top + index * (HEIGHT + GAP);
    });
  }
  return { width: EDGE * 2 + WIDTH + Math.max(...columns.keys()) * (WIDTH + BETWEEN), height };
}

const name = (node) => node.name || "(default exchange)";

function drawNode(vhost, node, light) {
  const title = `${node.type} ${name(node)}, ${node.out.length} bindings from it`;
  return s("a", { href: page[node.type](vhost, node.name), class: `node ${node.type}`,
    onfocus: () => light(node, true), onblur: () => light(node, false), onmouseenter: () => light(node, true), onmouseleave: () => light(node, false) },
  s("title", {}, title),
  s("rect", { x: node.x, y: node.y, width: WIDTH, height: HEIGHT, rx: node.type === "exchange" ? HEIGHT / 2 : 5 }),
  s("text", { x: node.x + WIDTH / 2, y: node.y + 21, "text-anchor": "middle" }, cut(name(node), 22)));
}

// Labels that stand above each other where ways come together; further ones are told by their titles.
const MOST_LABELS = 3;

function drawEdge(edge, index) {
  const { from, to } = edge;
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const text = edge.keys.length > 1 ? `${cut(edge.keys[0], 16)} +${edge.keys.length - 1}` : cut(edge.keys[0], 20);
  const bend = Math.max(40, Math.abs(x2 - x1) / 2);
  edge.line = s("g", { class: "edge" }, s("title", {}, `${name(from)} → ${name(to)}: ${edge.keys.slice(0, 20).join(", ")}`),
    s("path", { d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, "marker-end": "url(#arrow)" }),
    text && index < MOST_LABELS && s("text", { x: x2 - 10, y: y2 - 5 - 12 * index, "text-anchor": "end" }, text));
  return edge.line;
}

// The picture of what graphOf found.
export function draw(vhost, { nodes, edges, start }) {
  const { width, height } = place(nodes);
  const light = (node, isLit) => edges.filter((each) => each.from === node || each.to === node)
    .forEach((each) => each.line.classList.toggle("lit", isLit));
  const arrow = s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    s("path", { d: "M0 0 L8 4 L0 8 z" }));
  const counts = new Map();
  const labels = (edge) => {
    const before = counts.get(edge.to) ?? 0;
    counts.set(edge.to, before + (edge.keys[0] ? 1 : 0));
    return before;
  };
  const columns = [...nodes].sort((one, other) => one.depth - other.depth || one.y - other.y);
  const element = h("div", { class: "scroll drawing", tabindex: "0", role: "region", "aria-label": "Bindings as a drawing" },
    s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${nodes.length} exchanges, queues, streams and sessions, ${edges.length} ways between them` },
      s("defs", {}, arrow),
      edges.map((edge) => drawEdge(edge, labels(edge))),
      columns.map((node) => drawNode(vhost, node, light))));
  // Once it stands on the page it shows where the ways begin.
  const first = start ?? columns[0];
  requestAnimationFrame(() => {
    const isBeside = first.x + WIDTH + EDGE > element.clientWidth;
    element.scrollTo(isBeside ? first.x - EDGE : 0, first.y + (HEIGHT - element.clientHeight) / 2);
  });
  return element;
}
