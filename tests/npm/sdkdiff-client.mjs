// Calls tools with given JSON texts as arguments, with the TypeScript SDK v1 or
// v2, and prints which values the application above the SDK got.
//
//   node sdkdiff-client.mjs '{"sdk":"v1" | "v2",
//     "targets":[{"url":…} | {"command":…,"args":[…]}],
//     "steps":[{"tool":…,"arguments":"<JSON text>"}]}'
//
// It uses all targets at once and prints an array with a report for each.
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as StdioV1 } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as HTTPV1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Client as ClientV2, StreamableHTTPClientTransport as HTTPV2 } from '@modelcontextprotocol/client';
import { StdioClientTransport as StdioV2 } from '@modelcontextprotocol/client/stdio';
import { show } from './sdkdiff.mjs';

const { sdk, targets, steps } = JSON.parse(process.argv[2]);
const info = { name: `typescript-${sdk}`, version: '1.0.0' };
const [Stdio, HTTP] = sdk === 'v1' ? [StdioV1, HTTPV1] : [StdioV2, HTTPV2];

const reports = await Promise.all(targets.map(use));
process.stdout.write(`${JSON.stringify(reports)}\n`);

async function use(target) {
  const transport = target.url
    ? new HTTP(new URL(target.url))
    : new Stdio({ command: target.command, args: target.args, env: process.env, stderr: 'inherit' });
  const client = sdk === 'v1'
    ? new ClientV1(info)
    : new ClientV2(info, { versionNegotiation: { mode: 'auto' } });
  const report = { steps: [] };
  try {
    await client.connect(transport);
    report.revision = (sdk === 'v1' ? transport.protocolVersion : client.getNegotiatedProtocolVersion()) ?? '';
    for (const step of steps) {
      report.steps.push(await call(client, step));
    }
  } catch (error) {
    report.error = failure(error);
  }
  await client.close().catch(() => {});
  return report;
}

async function call(client, step) {
  try {
    const params = { name: step.tool };
    if (step.arguments !== undefined) params.arguments = JSON.parse(step.arguments);
    const result = await client.callTool(params);
    return {
      text: result.content?.[0]?.text ?? '',
      structured: show(result.structuredContent),
      isError: result.isError === true,
    };
  } catch (error) {
    return { error: failure(error) };
  }
}

function failure(error) {
  return { code: typeof error?.code === 'number' ? error.code : 0, message: String(error?.message ?? error) };
}
