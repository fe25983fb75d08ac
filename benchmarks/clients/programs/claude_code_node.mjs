import { spawnSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [url, model] = process.argv.slice(2);
const home = mkdtempSync(join(tmpdir(), "claude-"));
const claude = join(import.meta.dirname, "node_modules/.bin/claude");
const env = { PATH: process.env.PATH, HOME: home, ANTHROPIC_BASE_URL: url, ANTHROPIC_API_KEY: "none", ANTHROPIC_MODEL: model, ANTHROPIC_SMALL_FAST_MODEL: model, CLAUDE_CODE_MAX_OUTPUT_TOKENS: "256", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", CLAUDE_CODE_MAX_RETRIES: "0" };
const options = ["--print", "--verbose", "--output-format", "stream-json", "--system-prompt", "Answer in one sentence.", "--tools", "", "--strict-mcp-config"];
function ask(...extra) {
  const ran = spawnSync(claude, [...options, ...extra, "What is the capital of France?"], { cwd: home, env, input: "", encoding: "utf8", timeout: 200_000 });
  return ran.stdout.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
}
const events = ask(), end = events.at(-1);
const seen = { text: end?.subtype === "success" && !end.is_error && Boolean(end.result), streams: events.some(({ type }) => type === "assistant") };
const bad = ask("--model", "nobody").at(-1);
seen.errors = Boolean(bad?.is_error);
console.log(JSON.stringify(seen));
