package memsvc.example;

import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.NameResolverRegistry;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import memsvc.v1.ForgetRequest;
import memsvc.v1.ForgetResponse;
import memsvc.v1.MemoryServiceGrpc;
import memsvc.v1.MemoryServiceGrpc.MemoryServiceBlockingStub;
import memsvc.v1.QueryRequest;
import memsvc.v1.QueryResponse;
import memsvc.v1.WriteRequest;
import memsvc.v1.WriteResponse;

/**
 * The four calls over two channels: one for reads, at any node that is fit, and one for changes, at
 * the primary. A change must have a request_id, since it may be sent again.
 */
final class Memory implements AutoCloseable {
  private static final Duration READ = Duration.ofSeconds(5); // deadlines of one attempt
  private static final Duration CHANGE = Duration.ofSeconds(10);
  private static final int ATTEMPTS = 8;
  private static final Metadata.Key<String> TOKEN =
      Metadata.Key.of("x-memory-token", Metadata.ASCII_STRING_MARSHALLER);

  private final ManagedChannel reads;
  private final ManagedChannel changes;
  private final String token;

  /** Connects to nodes (host:port); the service configs in the folder say which are asked. */
  Memory(List<String> nodes, Path configs, String token) throws IOException {
    NameResolverRegistry.getDefaultRegistry().register(new NodeList(nodes));
    reads = connect(configs.resolve("reads.json"));
    changes = connect(configs.resolve("changes.json"));
    this.token = token;
  }

  private static ManagedChannel connect(Path serviceConfig) throws IOException {
    // Numbers in it must be of type Double, which Gson makes of them.
    Map<String, ?> config =
        new Gson().fromJson(Files.readString(serviceConfig), new TypeToken<Map<String, ?>>() {});
    // TLS: TlsChannelCredentials.create().
    return Grpc.newChannelBuilder("nodes:///memsvc", InsecureChannelCredentials.create())
        .defaultServiceConfig(config)
        .keepAliveTime(30, TimeUnit.SECONDS)
        .keepAliveTimeout(10, TimeUnit.SECONDS)
        .build();
  }

  /** How a call is made: null stands for the token of the channel, and the usual deadline. */
  record Manner(String token, Duration deadline) {}

  QueryResponse query(QueryRequest request, Manner manner) throws Refusal {
    return call(reads, READ, manner, stub -> stub.query(request));
  }

  WriteResponse write(WriteRequest request, Manner manner) throws Refusal {
    return call(changes, CHANGE, manner, stub -> stub.write(request));
  }

  ForgetResponse forget(ForgetRequest request, Manner manner) throws Refusal {
    return call(changes, CHANGE, manner, stub -> stub.forget(request));
  }

  private <T> T call(
      ManagedChannel channel,
      Duration usual,
      Manner manner,
      Function<MemoryServiceBlockingStub, T> method)
      throws Refusal {
    Metadata headers = new Metadata();
    headers.put(TOKEN, Optional.ofNullable(manner.token()).orElse(token));
    Duration deadline = Optional.ofNullable(manner.deadline()).orElse(usual);
    MemoryServiceBlockingStub stub =
        MemoryServiceGrpc.newBlockingStub(channel)
            .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
    for (int attempt = 1; ; attempt++) {
      try {
        return method.apply(stub.withDeadlineAfter(deadline.toNanos(), TimeUnit.NANOSECONDS));
      } catch (StatusRuntimeException error) {
        Refusal refusal = new Refusal(error);
        Optional<Duration> pause = refusal.pause();
        if (pause.isEmpty() || attempt == ATTEMPTS) {
          throw refusal;
        }
        // Callers that were refused together come apart.
        long nanos = (long) (pause.get().toNanos() * ThreadLocalRandom.current().nextDouble(1, 1.25));
        System.err.printf("%s: again in %.3f s%n", refusal.reason, nanos / 1e9);
        try {
          TimeUnit.NANOSECONDS.sleep(nanos);
        } catch (InterruptedException interrupted) {
          Thread.currentThread().interrupt();
          throw refusal;
        }
      }
    }
  }

  @Override
  public void close() {
    reads.shutdown();
    changes.shutdown();
  }
}
