import { createAnthropic } from "@ai-sdk/anthropic";
import { APICallError, generateText, jsonSchema, Output, isStepCount, streamText, tool } from "ai";

const [url, name] = process.argv.slice(2);
const provider = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
const providerOptions = { anthropic: { disableParallelToolUse: true } };
const usual = { model: provider(name), prompt: "What is the capital of France?", temperature: 0, maxOutputTokens: 256, maxRetries: 0, providerOptions };
const schema = jsonSchema({ type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false });
const seen = {};
seen.text = Boolean((await generateText(usual)).text);
let parts = 0;
for await (const _ of streamText(usual).textStream) parts += 1;
seen.streams = parts > 1;
let called = false;
const tools = { look_up: tool({ description: "Look up a city.", inputSchema: schema, execute: ({ city }) => { called = Boolean(city); return city; } }) };
const first = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
const { steps } = await generateText({ ...usual, tools, prepareStep: first, stopWhen: isStepCount(2) });
seen.tools = called && steps.length === 2;
seen.forms = "city" in (await generateText({ ...usual, output: Output.object({ schema }) })).output;
try {
  await generateText({ ...usual, model: provider("nobody") });
} catch (error) {
  seen.errors = APICallError.isInstance(error) && error.statusCode === 404;
}
console.log(JSON.stringify(seen));
