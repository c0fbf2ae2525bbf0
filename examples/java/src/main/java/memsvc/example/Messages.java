package memsvc.example;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.stream.StreamSupport;
import memsvc.v1.Condition;
import memsvc.v1.Filter;
import memsvc.v1.FilterList;
import memsvc.v1.Memory;
import memsvc.v1.Metadata;
import memsvc.v1.Range;
import memsvc.v1.Value;
import memsvc.v1.ValueList;
import memsvc.v1.Vector;

/** Messages made of parts of the script. */
final class Messages {
  private Messages() {}

  static Memory memory(JsonObject fields) {
    Metadata.Builder metadata = Metadata.newBuilder().setTopic(text(fields, "topic"));
    if (fields.has("ts")) {
      metadata.setTs(fields.get("ts").getAsLong());
    }
    if (fields.has("importance")) {
      metadata.setImportance(fields.get("importance").getAsFloat());
    }
    Memory.Builder memory =
        Memory.newBuilder()
            .setDedupKey(text(fields, "key"))
            .setContent(text(fields, "content"))
            .setSummary(text(fields, "summary"))
            .setMetadata(metadata);
    if (fields.has("vector")) {
      memory.setVector(vector(fields));
    }
    if (fields.has("ttl_ms")) {
      memory.setTtlMs(fields.get("ttl_ms").getAsLong());
    }
    return memory.build();
  }

  static Vector vector(JsonObject fields) {
    Vector.Builder vector = Vector.newBuilder();
    fields.getAsJsonArray("vector").forEach(number -> vector.addValues(number.getAsFloat()));
    return vector.build();
  }

  /** True where all of the conditions are. */
  static Filter filters(JsonArray conditions) {
    FilterList.Builder all = FilterList.newBuilder();
    for (JsonElement one : conditions) {
      all.addFilters(Filter.newBuilder().setCondition(condition(one.getAsJsonObject())));
    }
    return Filter.newBuilder().setAllOf(all).build();
  }

  private static Condition condition(JsonObject one) {
    Condition.Builder condition = Condition.newBuilder().setField(text(one, "field"));
    if (one.has("in")) {
      ValueList.Builder values = ValueList.newBuilder();
      one.getAsJsonArray("in")
          .forEach(text -> values.addValues(Value.newBuilder().setStringValue(text.getAsString())));
      return condition.setInValues(values).build();
    }
    Value.Builder least = Value.newBuilder().setDoubleValue(one.get("gte").getAsDouble());
    return condition.setRange(Range.newBuilder().setGte(least)).build();
  }

  /** A text of the script; empty when it is missing. */
  static String text(JsonObject fields, String name) {
    return fields.has(name) ? fields.get(name).getAsString() : "";
  }

  static Iterable<String> texts(JsonObject fields, String name) {
    JsonArray list = fields.has(name) ? fields.getAsJsonArray(name) : new JsonArray();
    return StreamSupport.stream(list.spliterator(), false).map(JsonElement::getAsString).toList();
  }
}
