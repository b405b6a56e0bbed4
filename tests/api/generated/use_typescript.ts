// Uses every operation of a client that @hey-api/openapi-ts has made, and writes what came of each, as JSON.
import { readFileSync } from 'node:fs';
import { client } from './made/client.gen';
import * as made from './made/sdk.gen';
import type { operations } from './types';

type Call = { operation: keyof operations; path?: object; query?: object; body?: object };
type Operation = (options: object) => Promise<{ data?: unknown; error?: unknown; response: Response }>;

const [url, key, calls] = process.argv.slice(2);
client.setConfig({ baseUrl: url, auth: () => key });
const unused = new Map(Object.entries(made) as unknown as [string, Operation][]);

async function main(): Promise<void> {
  const done = [];
  for (const call of JSON.parse(readFileSync(calls, 'utf-8')) as Call[]) {
    const name = call.operation.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
    const operation = unused.get(name);
    if (operation === undefined) throw new Error(`there is no ${name}`);
    unused.delete(name);
    const { data, error, response } = await operation({ path: call.path, query: call.query, body: call.body });
    done.push({ operation: call.operation, status: response.status, answer: data ?? error ?? null });
  }
  console.log(JSON.stringify({ done, unused: [...unused.keys()] }));
}

void main();
