// `node llama_cpp_worker.mjs PACKAGES MODEL THREADS CLOCK`: llama.cpp, by node-llama-cpp in PACKAGES.

import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const [packages, model, threads, clock] = process.argv.slice(2);
const entry = `${packages}/node-llama-cpp/dist/index.js`;
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry));
const llama = await getLlama(
  {gpu: false, build: "never", maxThreads: Number(threads), logLevel: LlamaLogLevel.error});
const loaded = await llama.loadModel({modelPath: model});
const context = await loaded.createContext({contextSize: 2048, threads: Number(threads)});
const sequence = context.getSequence();

function seconds() {
  if (clock === "wall") return performance.now() / 1000;
  const {user, system} = process.cpuUsage();
  return (user + system) / 1e6;
}

async function answer({prompt, max_tokens: maxTokens}) {
  await sequence.clearHistory();
  const started = seconds();
  const tokens = [];
  let first = null;
  for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    first ??= seconds();
    tokens.push(token);
    if (tokens.length === maxTokens || loaded.isEogToken(token)) break;
  }
  const ended = seconds();
  return {tokens, first_seconds: first - started, seconds: ended - started};
}

console.log("{}");
for await (const line of createInterface({input: process.stdin}))
  console.log(JSON.stringify(await answer(JSON.parse(line))));
process.exit(0);
