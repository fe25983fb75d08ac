// The draft tree of a step, left to right: what was proposed, what was taken.

import { svg } from "./svg.js";

const COLUMN = 104;
const ROW = 34;
const BOX = { width: 84, height: 24 };

/** Return an SVG of a step's draft tree, with the target's own token at the end of its path. */
export function drawTree(step) {
  const nodes = layOut(nodesOf(step));
  const columns = 1 + Math.max(...nodes.map((node) => node.depth));
  const rows = 1 + Math.max(...nodes.map((node) => node.row));
  const size = { width: columns * COLUMN + 8, height: rows * ROW + 12 };
  const picture = svg("svg", {
    ...size, role: "img",
    "aria-label": `A tree of ${step.tree.token_ids.length} tokens, `
      + `${step.num_accepted_tokens} of them accepted`,
  });
  for (const node of nodes) if (node.parent) picture.append(drawEdge(node));
  for (const node of nodes) picture.append(drawNode(node));
  return picture;
}

/** Return the root, the tree's nodes and the target's own token, parents first. */
function nodesOf({ tree, tokens, num_accepted_tokens: numAccepted }) {
  const root = { text: "", kind: "root", parent: null, children: [] };
  const nodes = tree.token_ids.map((_, index) => ({
    text: tree.texts[index],
    probability: tree.probabilities[index],
    kind: tree.accepted.includes(index) ? "accepted" : "rejected",
    children: [],
  }));
  tree.parents.forEach((parent, index) => {
    nodes[index].parent = parent < 0 ? root : nodes[parent];
  });
  const own = tokens[numAccepted];
  if (own) {
    const last = tree.accepted.at(-1);
    const parent = last === undefined ? root : nodes[last];
    nodes.push({ text: own.text, kind: "own", parent, children: [] });
  }
  for (const node of nodes) node.parent.children.push(node);
  return [root, ...nodes];
}

/** Give every node its depth, and a row: a leaf has one of its own, a parent its first child's. */
function layOut(nodes) {
  let numRows = 0;
  const place = (node, depth) => {
    node.depth = depth;
    const rank = { accepted: 0, own: 1, rejected: 2 };
    node.children.sort((a, b) => rank[a.kind] - rank[b.kind]);
    for (const child of node.children) place(child, depth + 1);
    node.row = node.children.length ? node.children[0].row : numRows++;
  };
  place(nodes[0], 0);
  return nodes;
}

const left = (node) => node.depth * COLUMN + 6;
const middle = (node) => node.row * ROW + 6 + BOX.height / 2;

function drawEdge(node) {
  return svg("line", {
    class: node.kind,
    x1: left(node.parent) + (node.parent.kind === "root" ? 24 : BOX.width), y1: middle(node.parent),
    x2: left(node), y2: middle(node),
  });
}

function drawNode(node) {
  const group = svg("g", { class: node.kind, transform: `translate(${left(node)} ${node.row * ROW + 6})` });
  group.append(svg("rect", { ...BOX, rx: 5 }));
  const text = node.kind === "root" ? "…" : JSON.stringify(node.text).slice(1, -1).replaceAll(" ", "␣");
  const shown = text.length > 9 ? `${text.slice(0, 8)}…` : text;
  group.append(svg("text", { x: 6, y: 16 }, shown));
  if (node.probability !== undefined) {
    const percent = `${Math.round(node.probability * 100)}%`;
    group.append(svg("text", { class: "probability", x: BOX.width - 4, y: 10, "text-anchor": "end" }, percent));
  }
  group.append(svg("title", {}, `${node.kind === "own" ? "the target's own: " : ""}${text}`));
  return group;
}
