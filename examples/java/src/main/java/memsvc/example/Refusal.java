package memsvc.example;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** What a refused call said. */
final class Refusal extends Exception {
  private static final long serialVersionUID = 1;
  private static final Duration LONGEST_PAUSE = Duration.ofSeconds(30); // else it is told

  final Status.Code code;
  final String reason;
  final transient List<BadRequest.FieldViolation> violations = new ArrayList<>();
  private final Duration retryAfter;

  /** Reads the google.rpc details of an error. */
  Refusal(StatusRuntimeException error) {
    super(error.getMessage(), error);
    code = error.getStatus().getCode();
    String reason = "";
    Duration delay = null;
    try {
      for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          reason = detail.unpack(ErrorInfo.class).getReason();
        } else if (detail.is(BadRequest.class)) {
          violations.addAll(detail.unpack(BadRequest.class).getFieldViolationsList());
        } else if (detail.is(RetryInfo.class)) {
          com.google.protobuf.Duration told = detail.unpack(RetryInfo.class).getRetryDelay();
          delay = Duration.ofSeconds(told.getSeconds(), told.getNanos());
        }
      }
    } catch (InvalidProtocolBufferException broken) {
      addSuppressed(broken); // the code alone must do
    }
    this.reason = reason;
    this.retryAfter = delay;
  }

  /** After what time the same call may be sent again; empty when that cannot help. */
  Optional<Duration> pause() {
    if (retryAfter == null && reason.equals("NOT_PRIMARY")) {
      // A switch-over: the channel finds the new primary within a second.
      return Optional.of(Duration.ofMillis(200));
    }
    return Optional.ofNullable(retryAfter).filter(pause -> pause.compareTo(LONGEST_PAUSE) <= 0);
  }
}
