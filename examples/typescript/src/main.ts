/**
 * Holds the scripted conversation of ../conversation.json and prints what was answered.
 *
 *     npm run build && npm start
 *
 * MEMSVC_NODES lists the nodes (host:port, by commas), MEMSVC_TOKEN is the token, MEMSVC_AGENT the
 * agent in whose name it is held; each run needs a new one, since memories are known by their keys.
 */
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";

import {
  ForgetMode,
  ForgetRequest,
  Hit,
  Mode,
  Outcome,
  QueryRequest,
  QueryResponse,
  WriteRequest,
} from "./gen/memsvc/v1/memory_service.js";
import { Namespace, Status } from "./gen/memsvc/v1/types.js";
import { Manner, Memory } from "./memory.js";
import { filters, numbers, writeItem } from "./messages.js";
import { Refusal } from "./refusal.js";
import { Script, Step } from "./script.js";

type Answer = Record<string, unknown>;

/** One script in one namespace. */
class Conversation {
  private readonly ids = new Map<string, string>(); // of memories, by their keys in the script
  private readonly keys = new Map<string, string>(); // the other way round
  private position = ""; // of the last change: reads wait for it

  constructor(
    private readonly script: Script,
    private readonly memory: Memory,
    private readonly agent: string,
  ) {}

  /** One step; what is printed of it. */
  async hold(step: Step): Promise<Answer> {
    try {
      return { step: step.step, ...(await this[step.call](step)) };
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      const { code, violations } = error;
      // Client and node both watch the deadline; only the node gives a reason.
      const reason = code === "DEADLINE_EXCEEDED" ? "" : error.reason;
      return { step: step.step, refused: { code, reason, violations } };
    }
  }

  private async write(step: Step): Promise<Answer> {
    const source = step.repeat_of ? this.script.steps.find((one) => one.step === step.repeat_of) : step;
    const items = source?.items ?? [];
    const request = WriteRequest.fromPartial({
      namespace: this.namespace(step),
      requestId: step.request_id,
      items: items.map((item) => writeItem(item, this.ids)),
    });
    const answer = await this.memory.write(request, manner(step));
    this.position = answer.position;
    const results = answer.results.map(({ id, outcome, status, version }, i) => {
      const { memory, touch, update } = items[i]!;
      const { key } = (memory ?? touch ?? update)!;
      this.ids.set(key, id);
      this.keys.set(id, key);
      return {
        key,
        outcome: Outcome[outcome]!.replace("OUTCOME_", ""),
        status: Status[status]!.replace("STATUS_", ""),
        version,
      };
    });
    return { results, replayed: answer.replayed };
  }

  private async query(step: Step): Promise<Answer> {
    const answer = await this.memory.query(this.search(step), manner(step));
    return {
      mode: Mode[answer.mode]!.replace("MODE_", ""),
      degraded: answer.degraded?.level ?? 0,
      hits: answer.items.map((hit) => this.hit(hit)),
    };
  }

  private async browse(step: Step): Promise<Answer> {
    const request = this.search({ ...step, mode: "BROWSE", top_k: step.page_size });
    const pages: string[][] = [];
    do {
      const answer = await this.memory.query(request, manner(step));
      pages.push(this.found(answer));
      request.pageToken = answer.nextPageToken;
    } while (request.pageToken);
    return { pages };
  }

  private async forget(step: Step): Promise<Answer> {
    const request = ForgetRequest.fromPartial({
      namespace: this.namespace(step),
      requestId: step.request_id,
      ids: this.idsOf(step),
      filters: filters(step.filters),
      mode: ForgetMode[`FORGET_MODE_${step.mode}` as keyof typeof ForgetMode],
      factor: step.factor,
      validateOnly: step.validate_only,
    });
    const { position, matched, changed, ids, replayed } = await this.memory.forget(request, manner(step));
    this.position = position;
    return { matched, changed, keys: ids.map((id) => this.keys.get(id)), replayed };
  }

  private async burst(step: Step): Promise<Answer> {
    const found: string[] = [];
    for (let i = 0; i < (step.times ?? 0); i++) {
      found.push(this.found(await this.memory.query(this.search(step), manner(step))).join());
    }
    return { answered: found.length, alike: found.every((keys) => keys === found[0]) };
  }

  private namespace(step: Step): Namespace {
    const { tenant, session } = this.script;
    return { tenant: step.tenant ?? tenant, agent: this.agent, session };
  }

  private search(step: Step): QueryRequest {
    return QueryRequest.fromPartial({
      namespace: this.namespace(step),
      vector: numbers(step.vector),
      text: step.text,
      ids: this.idsOf(step),
      topK: step.top_k,
      minScore: step.min_score,
      filters: filters(step.filters),
      mode: Mode[`MODE_${step.mode ?? "AUTO"}` as keyof typeof Mode],
      minPosition: this.position,
      include: { content: step.include_content },
    });
  }

  private hit(hit: Hit): Answer {
    return {
      key: this.keys.get(hit.id),
      summary: hit.summary,
      version: hit.version,
      topic: hit.metadata?.topic,
      score: hit.score.toFixed(4),
      importance: hit.importanceStored.toFixed(4),
      recalls: hit.recallCount,
      similarity: hit.similarity?.toFixed(4),
      content: hit.content || undefined,
    };
  }

  private idsOf(step: Step): string[] {
    return (step.keys ?? []).map((key) => this.ids.get(key) ?? "");
  }

  private found(answer: QueryResponse): string[] {
    return answer.items.map((hit) => this.keys.get(hit.id) ?? "");
  }
}

/** Token and deadline, where the step has its own. */
function manner(step: Step): Manner {
  return { token: step.token, deadlineMs: step.deadline_ms };
}

/** Has objects printed with their names in order. */
function sorted(_: string, value: unknown): unknown {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
}

async function main(path: string): Promise<void> {
  const script = JSON.parse(readFileSync(path, "utf8")) as Script;
  const { MEMSVC_NODES = "127.0.0.1:8848", MEMSVC_TOKEN = "", MEMSVC_AGENT } = process.env;
  const memory = new Memory(MEMSVC_NODES.split(","), join(dirname(path), "service-config"), MEMSVC_TOKEN);
  const conversation = new Conversation(script, memory, MEMSVC_AGENT || `typescript-${Date.now()}`);
  for (const step of script.steps) {
    console.log(JSON.stringify(await conversation.hold(step), sorted));
  }
  memory.close();
}

await main(process.argv[2] ?? "../conversation.json");
