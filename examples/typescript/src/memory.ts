import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import {
  CallOptions,
  ClientUnaryCall,
  Metadata,
  ServiceError,
  credentials,
} from "@grpc/grpc-js";

import {
  ForgetRequest,
  ForgetResponse,
  MemoryServiceClient,
  QueryRequest,
  QueryResponse,
  WriteRequest,
  WriteResponse,
} from "./gen/memsvc/v1/memory_service.js";
import { Refusal } from "./refusal.js";

const READ_MS = 5_000; // deadlines of one attempt
const CHANGE_MS = 10_000;
const ATTEMPTS = 8;

/** How a call is made, where that is not as usual. */
export interface Manner {
  token?: string;
  deadlineMs?: number;
}

type Method<Q, A> = (
  request: Q,
  metadata: Metadata,
  options: Partial<CallOptions>,
  callback: (error: ServiceError | null, answer: A) => void,
) => ClientUnaryCall;

/**
 * The four calls: reads go to all nodes by turns, changes to the primary, which is followed when it
 * moves. A change must have a request_id, since it may be sent again.
 */
export class Memory {
  private readonly reads: MemoryServiceClient;
  private readonly changes = new Map<string, MemoryServiceClient>();
  private readonly changesConfig: string;
  private primary: string;

  /** Nodes are host:port; the folder has the service configs. */
  constructor(
    private readonly nodes: string[],
    configs: string,
    private readonly token: string,
  ) {
    // A DNS name of all nodes does as well: dns:///memory.internal:8848.
    this.reads = connect(`ipv4:${nodes.join(",")}`, readFileSync(join(configs, "reads.json"), "utf8"));
    this.changesConfig = readFileSync(join(configs, "changes.json"), "utf8");
    this.primary = nodes[0] ?? "";
  }

  /** Asks any node. */
  query(request: QueryRequest, manner: Manner): Promise<QueryResponse> {
    return this.call(false, (node) => node.query, request, manner);
  }

  /** Asks the primary. */
  write(request: WriteRequest, manner: Manner): Promise<WriteResponse> {
    return this.call(true, (node) => node.write, request, manner);
  }

  /** Asks the primary. */
  forget(request: ForgetRequest, manner: Manner): Promise<ForgetResponse> {
    return this.call(true, (node) => node.forget, request, manner);
  }

  /** Ends the connections. */
  close(): void {
    this.reads.close();
    this.changes.forEach((client) => client.close());
  }

  /** The connection to the node that took, or is said to take, changes. */
  private changing(): MemoryServiceClient {
    const client = this.changes.get(this.primary) ?? connect(this.primary, this.changesConfig);
    this.changes.set(this.primary, client);
    return client;
  }

  private async call<Q, A>(
    change: boolean,
    method: (node: MemoryServiceClient) => Method<Q, A>,
    request: Q,
    manner: Manner,
  ): Promise<A> {
    // grpc-js reads waitForReady from here, and not from the service config. A change does not wait
    // for a primary that is gone: another node may have taken its place.
    const metadata = new Metadata({ waitForReady: !change });
    metadata.set("x-memory-token", manner.token ?? this.token);
    for (let attempt = 1; ; attempt++) {
      try {
        const node = change ? this.changing() : this.reads;
        const deadline = Date.now() + (manner.deadlineMs ?? (change ? CHANGE_MS : READ_MS));
        return await new Promise((resolve, reject) => {
          method(node).call(node, request, metadata, { deadline }, (error, answer) =>
            error ? reject(new Refusal(error)) : resolve(answer),
          );
        });
      } catch (error) {
        if (!(error instanceof Refusal)) throw error;
        const pauseMs = change ? this.follow(error) : error.pauseMs();
        if (pauseMs === undefined || attempt === ATTEMPTS) throw error;
        const ms = pauseMs * (1 + Math.random() / 4); // callers that were refused together come apart
        console.error(`${error.reason || error.code}: again in ${(ms / 1000).toFixed(3)} s`);
        await sleep(ms);
      }
    }
  }

  /** Learns from a refusal which node takes changes; when the call may be sent again, in ms. */
  private follow(refusal: Refusal): number | undefined {
    const unreachable = refusal.code === "UNAVAILABLE" && !refusal.reason;
    // During a switch-over a node may still name itself.
    if (refusal.primary && refusal.primary !== this.primary) {
      this.primary = refusal.primary;
    } else if (refusal.reason === "NOT_PRIMARY" || unreachable) {
      const next = this.nodes.indexOf(this.primary) + 1;
      this.primary = this.nodes[next % this.nodes.length] ?? "";
    }
    return unreachable ? 200 : refusal.pauseMs();
  }
}

function connect(target: string, serviceConfig: string): MemoryServiceClient {
  // TLS: credentials.createSsl().
  return new MemoryServiceClient(target, credentials.createInsecure(), {
    "grpc.service_config": serviceConfig,
    "grpc.max_reconnect_backoff_ms": 1_000, // a node that is back is noticed within a second
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
  });
}
