// Reads a stream of changes with a library, behind a proxy that cuts connections: before the first change, and after every third
// one. Prints the positions of the changes up to the one of the resource LAST, as JSON.
//
// Usage: node event_sources.mjs LIBRARY HOST:PORT KEY LAST

import { createRequire } from "node:module";
import net from "node:net";

const [library, service, key, last] = process.argv.slice(2);
const require = createRequire(`${process.cwd()}/target/outside-tools/generators/`);
const [host, port] = service.split(":");
const connections = new Set();

const proxy = net.createServer((client) => {
  const server = net.connect(Number(port), host);
  for (const [from, to] of [[client, server], [server, client]]) {
    connections.add(from);
    from.pipe(to);
    for (const end of ["error", "close"]) from.on(end, () => { connections.delete(from); to.destroy(); });
  }
});
const cut = () => { for (const connection of connections) connection.destroy(); };

await new Promise((resolve) => { proxy.listen(0, "127.0.0.1", resolve); });
const url = `http://127.0.0.1:${proxy.address().port}/api/v3/changes?kind=pet`;
const headers = { api_key: key };

function open() {
  switch (library) {
    case "eventsource": {
      const { EventSource } = require("eventsource");
      return new EventSource(url, { fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, ...headers } }) });
    }
    case "event-source-polyfill": {
      const { EventSourcePolyfill } = require("event-source-polyfill");
      return new EventSourcePolyfill(url, { headers });
    }
    case "launchdarkly-eventsource": {
      const { EventSource } = require("launchdarkly-eventsource");
      return new EventSource(url, { headers, initialRetryDelayMillis: 50, errorFilter: () => true });
    }
    default: throw new Error(`unknown library ${library}`);
  }
}

const positions = [];
let [isCutAtFirst, cuts] = [false, 0];
const source = open();
source.addEventListener("position", () => {
  if (isCutAtFirst) return;
  isCutAtFirst = true;
  cut();
  // What is changed from now on was not seen by the first connection.
  console.error("cut");
});
source.addEventListener("change", ({ data }) => {
  const { position, resource } = JSON.parse(data);
  positions.push(position);
  if (resource === last) {
    console.log(JSON.stringify({ positions, cuts }));
    process.exit(0);
  }
  if (positions.length % 3 === 0) {
    cuts += 1;
    cut();
  }
});
