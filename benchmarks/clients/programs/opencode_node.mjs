import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [url, model] = process.argv.slice(2);
const home = mkdtempSync(join(tmpdir(), "opencode-"));
const limit = { context: 8192, output: 256 };
const provider = { npm: "@ai-sdk/openai-compatible", name: "diffuspec", options: { baseURL: `${url}/v1`, apiKey: "none" }, models: { [model]: { name: model, limit, tool_call: true } } };
const agent = { build: { prompt: "Answer in one sentence.", tools: { "*": false, read: true } } };
writeFileSync(join(home, "opencode.json"), JSON.stringify({ $schema: "https://opencode.ai/config.json", provider: { diffuspec: provider }, model: `diffuspec/${model}`, small_model: `diffuspec/${model}`, agent, autoupdate: false, share: "disabled" }));
const opencode = join(import.meta.dirname, "node_modules/.bin/opencode");
function ask(name) {
  const ran = spawnSync(opencode, ["run", "--format", "json", "-m", `diffuspec/${name}`, "What is the capital of France?"], { cwd: home, env: { PATH: process.env.PATH, HOME: home }, input: "", encoding: "utf8", timeout: 200_000 });
  if (process.env.SHOW) console.error(ran.stdout, ran.stderr);
  return ran.stdout.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
}
const events = ask(model);
const seen = { text: events.some(({ type, part }) => type === "text" && part.text), streams: events.some(({ type }) => type === "step_finish") };
console.log(JSON.stringify({ ...seen, text: Boolean(seen.text) }));
