// The TypeScript SDK that also speaks 2026-07-28.
import { Client, ClientCredentialsProvider, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { plan, roots, run, sampled } from './plan.mjs';

const { target } = plan;
const authProvider = target.credentials && new ClientCredentialsProvider(target.credentials);
const transport = target.url
  ? new StreamableHTTPClientTransport(new URL(target.url), { authProvider })
  : new StdioClientTransport({ command: target.command, args: target.args, env: process.env, stderr: 'inherit' });
const client = new Client(
  { name: 'typescript-v2', version: '1.0.0' },
  { capabilities: { elicitation: {}, roots: {}, sampling: {} }, versionNegotiation: { mode: 'auto' } },
);
client.setRequestHandler('elicitation/create', async () => plan.answer);
client.setRequestHandler('sampling/createMessage', async () => sampled);
client.setRequestHandler('roots/list', async () => roots);

await run({
  connect: () => client.connect(transport),
  describe: () => ({ server: client.getServerVersion()?.name, revision: client.getNegotiatedProtocolVersion() ?? '' }),
  listTools: () => client.listTools(),
  callTool: (params, options) => client.callTool(params, options),
  close: () => client.close(),
});
