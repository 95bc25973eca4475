// The TypeScript SDK of the revisions up to 2025-11-25.
import { ClientCredentialsProvider } from '@modelcontextprotocol/sdk/client/auth-extensions.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema, CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { plan, roots, run, sampled } from './plan.mjs';

const { target } = plan;
const authProvider = target.credentials && new ClientCredentialsProvider(target.credentials);
const transport = target.url
  ? new StreamableHTTPClientTransport(new URL(target.url), { authProvider })
  : new StdioClientTransport({ command: target.command, args: target.args, env: process.env, stderr: 'inherit' });
const client = new Client({ name: 'typescript-v1', version: '1.0.0' }, { capabilities: { elicitation: {}, roots: {}, sampling: {} } });
client.setRequestHandler(ElicitRequestSchema, async () => plan.answer);
client.setRequestHandler(CreateMessageRequestSchema, async () => sampled);
client.setRequestHandler(ListRootsRequestSchema, async () => roots);

await run({
  connect: () => client.connect(transport),
  describe: () => ({ server: client.getServerVersion()?.name, revision: transport.protocolVersion ?? '' }),
  listTools: () => client.listTools(),
  callTool: (params, options) => client.callTool(params, CallToolResultSchema, options),
  close: async () => {
    if (target.url) await transport.terminateSession();
    await client.close();
  },
});
