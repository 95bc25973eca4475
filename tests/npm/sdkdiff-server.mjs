// A server of the TypeScript SDK v1 or v2 with two tools: echo answers with
// which arguments it got, give with the value of a JSON text.
//
//   node sdkdiff-server.mjs v1|v2 [PORT]      without a port on stdio
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { Server as ServerV1 } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, Server as ServerV2 } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { show } from './sdkdiff.mjs';

const [sdk, port] = process.argv.slice(2);

const tools = ['echo', 'give'].map((name) => ({ name, inputSchema: { type: 'object' } }));

async function call({ params }) {
  if (params.name === 'echo') {
    return { content: [{ type: 'text', text: show(params.arguments) }] };
  }
  const result = { content: [] };
  const { text } = params.arguments;
  if (text !== undefined) result.structuredContent = JSON.parse(text);
  return result;
}

// The low-level class of both: what reaches the tool is what the SDK read, not
// what a schema of the application made of it.
function make() {
  const info = { name: `typescript-${sdk}`, version: '1.0.0' };
  const options = { capabilities: { tools: {} } };
  if (sdk === 'v1') {
    const server = new ServerV1(info, options);
    server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools }));
    server.setRequestHandler(CallToolRequestSchema, call);
    return server;
  }
  const server = new ServerV2(info, options);
  server.setRequestHandler('tools/list', async () => ({ tools }));
  server.setRequestHandler('tools/call', call);
  return server;
}

if (port === undefined && sdk === 'v1') {
  await make().connect(new StdioServerTransport());
} else if (port === undefined) {
  serveStdio(make);
} else {
  createServer(sdk === 'v1' ? sessions() : toNodeHandler(createMcpHandler(make))).listen(Number(port), '127.0.0.1');
}

// One server and transport a session, as v1's own examples do.
function sessions() {
  const open = new Map();
  return async (req, res) => {
    let transport = open.get(req.headers['mcp-session-id']);
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => open.set(id, transport),
      });
      transport.onclose = () => open.delete(transport.sessionId);
      await make().connect(transport);
    }
    await transport.handleRequest(req, res);
  };
}
