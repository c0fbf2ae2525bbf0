import { Metadata, ServiceError, status } from "@grpc/grpc-js";
import { BadRequest, ErrorInfo, RetryInfo } from "nice-grpc-error-details";
import { Status } from "nice-grpc-error-details/lib/proto/google/rpc/status.js";

/** Who is asked to wait longer is told instead. */
const LONGEST_PAUSE_MS = 30_000;

/** One field that is wrong. */
export interface Violation {
  field: string;
  description: string;
}

/** What a refused call said. */
export class Refusal extends Error {
  /** Name of the status code, as in NOT_FOUND. */
  readonly code: string;
  readonly reason: string = "";
  readonly violations: Violation[] = [];
  /** Address of the node that takes changes, when this one does not and knows it. */
  readonly primary: string = "";
  private readonly retryAfterMs?: number;

  /** Reads the google.rpc details of an error. */
  constructor(error: ServiceError) {
    super(error.message, { cause: error });
    this.code = status[error.code];
    for (const { typeUrl, value } of details(error.metadata)) {
      switch (typeUrl.split("/").pop()) {
        case "google.rpc.ErrorInfo": {
          const info = ErrorInfo.decode(value);
          this.reason = info.reason;
          this.primary = info.metadata["primary"] ?? "";
          break;
        }
        case "google.rpc.BadRequest":
          for (const { field, description } of BadRequest.decode(value).fieldViolations) {
            this.violations.push({ field, description });
          }
          break;
        case "google.rpc.RetryInfo": {
          const delay = RetryInfo.decode(value).retryDelay;
          this.retryAfterMs = delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6;
          break;
        }
      }
    }
  }

  /** Milliseconds after which the same call may be sent again; undefined when that cannot help. */
  pauseMs(): number | undefined {
    const pauseMs = this.retryAfterMs ?? (this.reason === "NOT_PRIMARY" ? 200 : Infinity);
    return pauseMs <= LONGEST_PAUSE_MS ? pauseMs : undefined;
  }
}

function details(trailers: Metadata | undefined) {
  const [bytes] = trailers?.get("grpc-status-details-bin") ?? [];
  return bytes instanceof Buffer ? Status.decode(bytes).details : [];
}
