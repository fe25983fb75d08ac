// The page: reads the form, runs the prompt with and without speculation, shows both.

import { ApiError, fetchModel, streamChat } from "./api.js";
import { Answer, sameTokens } from "./answer.js";
import { AnswerView, describeStep, element } from "./view.js";
import { drawTree } from "./tree.js";

const byId = (id) => document.getElementById(id);
const value = (id) => byId(id).value.trim();
const STORED_KEY = "diffuspec-api-key";
let running = null; // the AbortController of the run under way
let shown = null; // the answer and the step in the dialog

function sampling() {
  const body = {
    messages: [{ role: "user", content: byId("prompt").value }],
    temperature: Number(value("temperature")),
    max_tokens: Number(value("max-tokens")),
  };
  if (value("seed")) body.seed = Number(value("seed"));
  else if (body.temperature > 0) body.seed = Math.floor(Math.random() * 2 ** 32);
  if (byId("stop").value) body.stop = byId("stop").value;
  return body;
}

/** Return what the form says; what it leaves open is the service's own. */
function speculation() {
  const chosen = {};
  if (value("policy")) chosen.policy = value("policy");
  if (value("policy") === "fixed") chosen.num_draft_tokens = Number(value("num-draft-tokens"));
  if (value("tree-shape")) chosen.tree_shape = value("tree-shape");
  if (value("max-nodes")) chosen.max_nodes = Number(value("max-nodes"));
  if (value("drafter-weight")) chosen.drafter_weight = Number(value("drafter-weight"));
  return chosen;
}

async function decode(root, title, body, signal) {
  const answer = new Answer();
  byId("legend").hidden = false;
  const view = new AnswerView(root, title, answer, openStep);
  for await (const chunk of streamChat(body, value("key"), signal)) {
    const step = answer.add(chunk);
    if (step) view.addStep(step);
  }
  view.refresh();
  return answer;
}

async function run() {
  if (running) return;
  running = new AbortController();
  setRunning(true);
  byId("error").hidden = byId("verdict").hidden = byId("plain").hidden = true;
  const { signal } = running;
  const base = sampling();
  try {
    say("Answering with speculation…");
    const report = { report_drafts: true };
    const drafted = await decode(byId("drafted"), "With speculation",
      { ...base, speculation: { ...speculation(), ...report } }, signal);
    if (byId("compare").checked) {
      say("Answering without speculation…");
      const plain = await decode(byId("plain"), "Without speculation",
        { ...base, speculation: { policy: "off", ...report } }, signal);
      compare(drafted, plain);
    }
    say(`Done: ${drafted.tokenIds.length} tokens in ${drafted.steps.length} passes of the target.`);
  } catch (error) {
    fail(error, signal.aborted);
  } finally {
    running = null;
    setRunning(false);
  }
}

function compare(drafted, plain) {
  const ratio = plain.seconds / drafted.seconds;
  const isSame = sameTokens(drafted, plain);
  const shown = ratio.toFixed(2);
  const factor = element("b", Number(shown) > 1 ? { class: "faster" } : {}, `${shown}x`);
  const tokens = element("span", isSame ? {} : { class: "wrong" }, `same tokens: ${isSame ? "yes" : "NO"}`);
  const hint = element("p", { class: "hint" },
    "One after the other, speculation first: the second run finds the prompt in the cache.");
  byId("verdict").replaceChildren("With speculation ", factor, " as fast; ", tokens, ".", hint);
  byId("verdict").hidden = false;
}

function fail(error, isStopped) {
  if (isStopped) {
    say("Stopped.");
    return;
  }
  say("");
  if (error instanceof ApiError && error.status === 401) byId("key-row").hidden = false;
  const reason = error instanceof ApiError ? error.message : `the service cannot be reached (${error.message})`;
  refuse(reason);
}

function refuse(reason) {
  byId("error").textContent = reason;
  byId("error").hidden = false;
}

function say(text) {
  byId("status").textContent = text;
}

function setRunning(isRunning) {
  byId("run").disabled = isRunning;
  byId("stop-button").disabled = !isRunning;
}

function openStep(step, answer) {
  shown = { step, answer };
  byId("step-title").textContent = `Step ${step.number} of ${answer.steps.length}`;
  byId("step-summary").textContent = describeStep(step);
  byId("step-tree").replaceChildren(step.tree ? drawTree(step) : "This step had no draft.");
  if (!byId("step").open) byId("step").showModal();
}

async function connect() {
  try {
    byId("model").textContent = await fetchModel(value("key"));
    byId("error").hidden = true;
    if (value("key")) sessionStorage.setItem(STORED_KEY, value("key"));
  } catch (error) {
    byId("model").textContent = "not connected";
    fail(error, false);
  }
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!value("prompt")) {
    refuse("The prompt is empty: write one, then run it.");
    byId("prompt").focus();
    return;
  }
  if (!byId("form").checkValidity()) byId("settings").open = true; // else its field cannot be shown
  if (byId("form").reportValidity()) run();
});
byId("stop-button").addEventListener("click", () => running?.abort());
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
byId("policy").addEventListener("change", () => {
  byId("num-draft-tokens").disabled = value("policy") !== "fixed";
});
byId("key").addEventListener("change", connect);
byId("step").addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const next = by && shown.answer.steps[shown.step.number - 1 + by];
  if (next && event.target !== byId("step-tree")) openStep(next, shown.answer);
});
byId("key").value = sessionStorage.getItem(STORED_KEY) ?? "";
byId("key-row").hidden = !value("key");
// A small screen shows what is needed to run a prompt; the settings are a touch away.
byId("settings").open = !matchMedia("(max-width: 30rem)").matches;
connect();
