package memsvc.example;

import static memsvc.example.Messages.filters;
import static memsvc.example.Messages.text;
import static memsvc.example.Messages.texts;
import static memsvc.example.Messages.vector;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.grpc.Status;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import memsvc.example.Memory.Manner;
import memsvc.v1.ForgetMode;
import memsvc.v1.ForgetRequest;
import memsvc.v1.ForgetResponse;
import memsvc.v1.Hit;
import memsvc.v1.Include;
import memsvc.v1.Mode;
import memsvc.v1.Namespace;
import memsvc.v1.QueryRequest;
import memsvc.v1.QueryResponse;
import memsvc.v1.Touch;
import memsvc.v1.TouchKind;
import memsvc.v1.Update;
import memsvc.v1.WriteItem;
import memsvc.v1.WriteRequest;
import memsvc.v1.WriteResponse;
import memsvc.v1.WriteResult;

/**
 * Holds the scripted conversation of ../conversation.json and prints what was answered.
 *
 * <p>MEMSVC_NODES lists the nodes (host:port, by commas), MEMSVC_TOKEN is the token, MEMSVC_AGENT
 * the agent in whose name it is held; each run needs a new one, since memories are known by their
 * keys.
 */
public final class Conversation {
  private final JsonObject script;
  private final Memory memory;
  private final String agent;
  private final Map<String, String> ids = new HashMap<>(); // of memories, by keys of the script
  private final Map<String, String> keys = new HashMap<>(); // the other way round
  private String position = ""; // of the last change: reads wait for it

  private Conversation(JsonObject script, Memory memory, String agent) {
    this.script = script;
    this.memory = memory;
    this.agent = agent;
  }

  private Map<String, Object> hold(JsonObject step) {
    Map<String, Object> answer;
    try {
      answer =
          switch (text(step, "call")) {
            case "write" -> write(step);
            case "query" -> query(step);
            case "browse" -> browse(step);
            case "forget" -> forget(step);
            case "burst" -> burst(step);
            default -> throw new IllegalArgumentException("unknown call in " + step);
          };
    } catch (Refusal refusal) {
      // Client and node both watch the deadline; only the node gives a reason.
      boolean late = refusal.code == Status.Code.DEADLINE_EXCEEDED;
      List<Object> violations = new ArrayList<>();
      refusal.violations.forEach(
          one -> violations.add(told("field", one.getField(), "description", one.getDescription())));
      answer =
          told(
              "refused",
              told(
                  "code", refusal.code.name(),
                  "reason", late ? "" : refusal.reason,
                  "violations", violations));
    }
    answer.put("step", text(step, "step"));
    return answer;
  }

  private Map<String, Object> write(JsonObject step) throws Refusal {
    JsonObject source = step.has("repeat_of") ? named(text(step, "repeat_of")) : step;
    WriteRequest.Builder request =
        WriteRequest.newBuilder()
            .setNamespace(namespace(step))
            .setRequestId(text(step, "request_id"));
    List<String> written = new ArrayList<>();
    for (JsonElement item : source.getAsJsonArray("items")) {
      Map.Entry<String, JsonElement> only =
          item.getAsJsonObject().entrySet().iterator().next();
      JsonObject fields = only.getValue().getAsJsonObject();
      request.addItems(item(only.getKey(), fields));
      written.add(text(fields, "key"));
    }
    WriteResponse answer = memory.write(request.build(), manner(step));
    position = answer.getPosition();
    List<Object> results = new ArrayList<>();
    for (int i = 0; i < written.size(); i++) {
      WriteResult result = answer.getResults(i);
      ids.put(written.get(i), result.getId());
      keys.put(result.getId(), written.get(i));
      results.add(
          told(
              "key", written.get(i),
              "outcome", result.getOutcome().name().replaceFirst("OUTCOME_", ""),
              "status", result.getStatus().name().replaceFirst("STATUS_", ""),
              "version", result.getVersion()));
    }
    return told("results", results, "replayed", answer.getReplayed());
  }

  private Map<String, Object> query(JsonObject step) throws Refusal {
    QueryResponse answer = memory.query(search(step).build(), manner(step));
    return told(
        "mode", answer.getMode().name().replaceFirst("MODE_", ""),
        "degraded", answer.getDegraded().getLevel(),
        "hits", answer.getItemsList().stream().map(this::hit).toList());
  }

  private Map<String, Object> hit(Hit hit) {
    Map<String, Object> told =
        told(
            "key", keys.get(hit.getId()),
            "summary", hit.getSummary(),
            "version", hit.getVersion(),
            "topic", hit.getMetadata().getTopic(),
            "score", fixed(hit.getScore()),
            "importance", fixed(hit.getImportanceStored()),
            "recalls", hit.getRecallCount());
    if (hit.hasSimilarity()) {
      told.put("similarity", fixed(hit.getSimilarity()));
    }
    if (!hit.getContent().isEmpty()) {
      told.put("content", hit.getContent());
    }
    return told;
  }

  private Map<String, Object> browse(JsonObject step) throws Refusal {
    QueryRequest.Builder request =
        search(step).setMode(Mode.MODE_BROWSE).setTopK(step.get("page_size").getAsInt());
    List<Object> pages = new ArrayList<>();
    while (true) {
      QueryResponse answer = memory.query(request.build(), manner(step));
      pages.add(keys(answer));
      if (answer.getNextPageToken().isEmpty()) {
        return told("pages", pages);
      }
      request.setPageToken(answer.getNextPageToken());
    }
  }

  private Map<String, Object> forget(JsonObject step) throws Refusal {
    ForgetRequest.Builder request =
        ForgetRequest.newBuilder()
            .setNamespace(namespace(step))
            .setRequestId(text(step, "request_id"))
            .setMode(ForgetMode.valueOf("FORGET_MODE_" + text(step, "mode")))
            .setValidateOnly(step.has("validate_only"));
    texts(step, "keys").forEach(key -> request.addIds(ids.get(key)));
    if (step.has("filters")) {
      request.setFilters(filters(step.getAsJsonArray("filters")));
    }
    if (step.has("factor")) {
      request.setFactor(step.get("factor").getAsFloat());
    }
    ForgetResponse answer = memory.forget(request.build(), manner(step));
    position = answer.getPosition();
    return told(
        "matched", answer.getMatched(),
        "changed", answer.getChanged(),
        "keys", answer.getIdsList().stream().map(keys::get).toList(),
        "replayed", answer.getReplayed());
  }

  private Map<String, Object> burst(JsonObject step) throws Refusal {
    int times = step.get("times").getAsInt();
    List<List<String>> found = new ArrayList<>();
    for (int i = 0; i < times; i++) {
      found.add(keys(memory.query(search(step).build(), manner(step))));
    }
    return told("answered", times, "alike", found.stream().allMatch(found.get(0)::equals));
  }

  private WriteItem item(String kind, JsonObject fields) {
    WriteItem.Builder item = WriteItem.newBuilder();
    switch (kind) {
      case "memory" -> item.setMemory(Messages.memory(fields));
      case "touch" -> {
        Touch.Builder touch =
            Touch.newBuilder()
                .setId(ids.get(text(fields, "key")))
                .setKind(TouchKind.valueOf("TOUCH_KIND_" + text(fields, "kind")));
        if (fields.has("importance")) {
          touch.setImportance(fields.get("importance").getAsFloat());
        }
        item.setTouch(touch);
      }
      case "update" ->
          item.setUpdate(
              Update.newBuilder()
                  .setId(ids.get(text(fields, "key")))
                  .setIfVersion(fields.get("if_version").getAsInt())
                  .setSummary(text(fields, "summary"))
                  .setReason(text(fields, "reason")));
      default -> throw new IllegalArgumentException("unknown kind of item: " + kind);
    }
    return item.build();
  }

  private QueryRequest.Builder search(JsonObject step) {
    QueryRequest.Builder request =
        QueryRequest.newBuilder()
            .setNamespace(namespace(step))
            .setText(text(step, "text"))
            .setMinPosition(position)
            .setInclude(Include.newBuilder().setContent(step.has("include_content")));
    texts(step, "keys").forEach(key -> request.addIds(ids.get(key)));
    if (step.has("vector")) {
      request.setVector(vector(step));
    }
    if (step.has("top_k")) {
      request.setTopK(step.get("top_k").getAsInt());
    }
    if (step.has("min_score")) {
      request.setMinScore(step.get("min_score").getAsFloat());
    }
    if (step.has("filters")) {
      request.setFilters(filters(step.getAsJsonArray("filters")));
    }
    if (step.has("mode")) {
      request.setMode(Mode.valueOf("MODE_" + text(step, "mode")));
    }
    return request;
  }

  private Namespace namespace(JsonObject step) {
    return Namespace.newBuilder()
        .setTenant(text(step.has("tenant") ? step : script, "tenant"))
        .setAgent(agent)
        .setSession(text(script, "session"))
        .build();
  }

  /** Token and deadline, where the step has its own. */
  private static Manner manner(JsonObject step) {
    return new Manner(
        step.has("token") ? text(step, "token") : null,
        step.has("deadline_ms") ? Duration.ofMillis(step.get("deadline_ms").getAsLong()) : null);
  }

  private JsonObject named(String name) {
    for (JsonElement step : script.getAsJsonArray("steps")) {
      if (text(step.getAsJsonObject(), "step").equals(name)) {
        return step.getAsJsonObject();
      }
    }
    throw new IllegalArgumentException("no step " + name);
  }

  private List<String> keys(QueryResponse answer) {
    return answer.getItemsList().stream().map(hit -> keys.get(hit.getId())).toList();
  }

  private static String fixed(float number) {
    return String.format(Locale.ROOT, "%.4f", number);
  }

  /** Names and values by turns, printed in the order of the names. */
  private static Map<String, Object> told(Object... pairs) {
    Map<String, Object> told = new TreeMap<>();
    for (int i = 0; i < pairs.length; i += 2) {
      told.put((String) pairs[i], pairs[i + 1]);
    }
    return told;
  }

  public static void main(String[] arguments) throws IOException {
    Path path = Path.of(arguments[0]);
    JsonObject script = JsonParser.parseString(Files.readString(path)).getAsJsonObject();
    Map<String, String> env = System.getenv();
    List<String> nodes = List.of(env.get("MEMSVC_NODES").split(","));
    Path configs = path.resolveSibling("service-config");
    String agent = env.getOrDefault("MEMSVC_AGENT", "java-" + System.nanoTime());
    Gson gson = new GsonBuilder().disableHtmlEscaping().create();
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    try (Memory memory = new Memory(nodes, configs, env.getOrDefault("MEMSVC_TOKEN", ""))) {
      Conversation conversation = new Conversation(script, memory, agent);
      for (JsonElement step : script.getAsJsonArray("steps")) {
        out.println(gson.toJson(conversation.hold(step.getAsJsonObject())));
      }
    }
  }
}
