// The time line of an answer: each step's draft, search and verification, to scale, and what is
// before them from the request on: the way to the service, the queue.

import { svg } from "./svg.js";

const LEFT = 56;
const LANES = ["draft", "search", "verify", "rest"];
const LANE_HEIGHT = 18;

/** Return an SVG of the steps, one after the other, with a lane for each stage.
 *  `seconds` is the time of the whole answer, which tokens per second are counted in.
 *  `width` is that of its place in pixels, so that its words are as large as those around it. */
export function drawTimeline(steps, seconds, width) {
  const inSteps = steps.reduce((sum, step) => sum + step.seconds.step, 0);
  const total = Math.max(seconds, inSteps) || 1;
  const scale = (width - LEFT) / total;
  const height = LANES.length * LANE_HEIGHT + 18;
  const picture = svg("svg", {
    class: "timeline", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Time line of ${steps.length} steps in ${total.toFixed(2)} seconds`,
  });
  LANES.forEach((lane, row) => {
    picture.append(svg("text", { x: 0, y: row * LANE_HEIGHT + 13 }, lane));
  });
  let start = total - inSteps;
  if (start) picture.append(bar("rest", LEFT, 3, start * scale, `before the first step: ${inMilliseconds(start)}`));
  for (const step of steps) {
    drawStep(picture, step, LEFT + start * scale, scale);
    start += step.seconds.step;
  }
  picture.append(svg("text", { x: LEFT, y: height - 3 }, "0"));
  picture.append(svg("text", { x: width, y: height - 3, "text-anchor": "end" },
    `${(total * 1000).toFixed(0)} ms`));
  return picture;
}

const inMilliseconds = (seconds) => `${(seconds * 1000).toFixed(1)} ms`;

function bar(kind, x, row, width, title) {
  const made = svg("rect", {
    class: kind, x, y: row * LANE_HEIGHT + 2,
    width: Math.max(width - 0.4, 0.4), height: LANE_HEIGHT - 4,
  });
  made.append(svg("title", {}, title));
  return made;
}

/** Draw one step. A pre-draft that was hit was made during the step before: it is an outline. */
function drawStep(picture, step, left, scale) {
  const isHit = step.pre_draft === "hit";
  const { draft, search, verify } = step.seconds;
  const rest = Math.max(step.seconds.step - verify - (isHit ? 0 : draft + search), 0);
  let x = left;
  [["draft", draft], ["search", search], ["verify", verify], ["rest", rest]].forEach(
    ([lane, seconds], row) => {
      if (!seconds) return;
      const width = seconds * scale;
      const isBefore = isHit && row < 2;
      const title = `step ${step.number}, ${lane}: ${inMilliseconds(seconds)}`;
      picture.append(bar(isBefore ? "hit" : lane, isBefore ? left - width : x, row, width, title));
      if (!isBefore) x += width;
    },
  );
}
