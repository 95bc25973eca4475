// Runs a plan of MCP operations with one client SDK and prints what the
// application above that SDK saw, as one JSON object on stdout.
//
//   node client-v1.mjs '{"target":{"url":…} | {"command":…,"args":[…]},
//                        "answer":{…}, "steps":[{"list":true} | {"call":…,"arguments":{…},"progress":true,"cancel":true,"repeat":…}]}'

export const plan = JSON.parse(process.argv[2]);

/** What the application says to a server that asks it. */
export const sampled = { role: 'assistant', model: 'a-model', content: { type: 'text', text: 'sampled words' } };
export const roots = { roots: [{ uri: 'file:///home/me/notes', name: 'notes' }] };

const failure = (error) => ({
  error: { code: typeof error?.code === 'number' ? error.code : 0, message: String(error?.message ?? error) },
});

/**
 * client must offer listTools(), callTool(params, options) and close();
 * describe() returns the server's name and the negotiated protocol version.
 */
export async function run({ connect, listTools, callTool, describe, close }) {
  const report = { steps: [] };
  try {
    await connect();
    Object.assign(report, describe());
    for (const step of plan.steps) {
      report.steps.push(await one(step));
    }
  } catch (error) {
    Object.assign(report, failure(error));
  }
  process.stdout.write(`${JSON.stringify(report)}\n`);
  await close().catch(() => {});

  async function one(step) {
    try {
      if (step.list) {
        const { tools } = await listTools();
        return { tools: tools.map((tool) => tool.name).sort() };
      }
      let progress = 0;
      const params = { name: step.call, arguments: step.arguments ?? {} };
      // A large message does not fit on a command line.
      if (step.repeat) params.arguments.message = params.arguments.message.repeat(step.repeat);
      const options = { onprogress: step.progress ? () => { progress += 1; } : undefined };
      if (step.cancel) options.signal = AbortSignal.timeout(300);
      const result = await callTool(params, options);
      const text = (result.content ?? []).map((part) => part.text ?? '').join('\n');
      return { text, isError: result.isError === true, progress };
    } catch (error) {
      return failure(error);
    }
  }
}
