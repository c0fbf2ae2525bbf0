import { Memory, TouchKind, Update, WriteItem } from "./gen/memsvc/v1/memory_service.js";
import { Condition, Filter, Metadata, Value, Vector } from "./gen/memsvc/v1/types.js";
import * as script from "./script.js";

/** The message of one item of a write; ids are known by the keys of the script. */
export function writeItem(item: script.Item, ids: Map<string, string>): WriteItem {
  if (item.touch) {
    const value = {
      id: ids.get(item.touch.key) ?? "",
      ts: undefined,
      importance: item.touch.importance,
      kind: TouchKind[`TOUCH_KIND_${item.touch.kind}`],
    };
    return { item: { $case: "touch", value } };
  }
  if (item.update) {
    const value = Update.fromPartial({
      id: ids.get(item.update.key),
      ifVersion: item.update.if_version,
      summary: item.update.summary,
      reason: item.update.reason,
    });
    return { item: { $case: "update", value } };
  }
  const { key, content, summary, vector, importance, topic, ts, ttl_ms } = item.memory!;
  const value = Memory.fromPartial({
    dedupKey: key,
    content,
    summary,
    vector: numbers(vector),
    metadata: Metadata.fromPartial({ ts, importance, topic }),
    ttlMs: ttl_ms,
  });
  return { item: { $case: "memory", value } };
}

export function numbers(values: number[] | undefined): Vector | undefined {
  return values && Vector.fromPartial({ values });
}

/** True where all of the conditions are. */
export function filters(conditions: script.Condition[] | undefined): Filter | undefined {
  if (!conditions) return undefined;
  const all = conditions.map((one): Filter => ({ node: { $case: "condition", value: condition(one) } }));
  return { node: { $case: "allOf", value: { filters: all } } };
}

function condition({ field, in: among, gte }: script.Condition): Condition {
  if (among) {
    const values = among.map((value): Value => ({ kind: { $case: "stringValue", value } }));
    return { field, test: { $case: "inValues", value: { values } } };
  }
  const least: Value = { kind: { $case: "doubleValue", value: gte ?? 0 } };
  return {
    field,
    test: { $case: "range", value: { gt: undefined, gte: least, lt: undefined, lte: undefined } },
  };
}
