import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [url, model] = process.argv.slice(2);
const home = mkdtempSync(join(tmpdir(), "codex-"));
writeFileSync(join(home, "instructions.md"), "Answer in one sentence.");
writeFileSync(join(home, "config.toml"), `
model = "${model}"
model_provider = "diffuspec"
model_instructions_file = "${join(home, "instructions.md")}"
[model_providers.diffuspec]
name = "diffuspec"
base_url = "${url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
`);
const codex = join(import.meta.dirname, "node_modules/.bin/codex");
const options = ["exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only"];
function ask(...extra) {
  const ran = spawnSync(codex, [...options, ...extra, "What is the capital of France?"], { cwd: home, env: { ...process.env, CODEX_HOME: home, HOME: home }, input: "", encoding: "utf8", timeout: 200_000 });
  return ran.stdout.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
}
const events = ask();
const seen = { text: events.some(({ item }) => item?.type === "agent_message" && item.text), streams: events.some(({ type }) => type === "turn.completed") };
const refused = ask("-c", 'model="nobody"').find(({ type }) => type === "turn.failed");
seen.errors = Boolean(refused?.error.message.includes("no such model"));
console.log(JSON.stringify({ ...seen, text: Boolean(seen.text) }));
