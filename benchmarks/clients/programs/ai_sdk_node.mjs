import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, jsonSchema, streamText, tool } from "ai";

const [url, name] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "diffuspec", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
const usual = { model: provider(name), prompt: "What is the capital of France?", temperature: 0, maxOutputTokens: 256, maxRetries: 0 };
const schema = jsonSchema({ type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false });
const seen = {};
seen.text = Boolean((await generateText(usual)).text);
let parts = 0;
for await (const _ of streamText(usual).textStream) parts += 1;
seen.streams = parts > 1;
const tools = { look_up: tool({ description: "Look up a city.", inputSchema: schema }) };
const { toolCalls: [call] } = await generateText({ ...usual, tools, toolChoice: "required" });
seen.tools = "city" in call.input;
seen.forms = "city" in (await generateObject({ ...usual, schema })).object;
try {
  await generateText({ ...usual, temperature: 99 });
} catch (error) {
  seen.errors = APICallError.isInstance(error) && error.statusCode === 400;
}
console.log(JSON.stringify(seen));
