/** The conversation as ../conversation.json has it. */
export interface Script {
  tenant: string;
  session: string;
  steps: Step[];
}

/** One call, or a few that belong together. */
export interface Step {
  step: string;
  call: "write" | "query" | "browse" | "forget" | "burst";
  request_id?: string;
  repeat_of?: string;
  items?: Item[];
  text?: string;
  vector?: number[];
  keys?: string[];
  filters?: Condition[];
  top_k?: number;
  min_score?: number;
  mode?: string;
  page_size?: number;
  include_content?: boolean;
  factor?: number;
  validate_only?: boolean;
  times?: number;
  tenant?: string;
  token?: string;
  deadline_ms?: number;
}

/** One of a write: exactly one is set. */
export interface Item {
  memory?: {
    key: string;
    content?: string;
    summary?: string;
    vector?: number[];
    importance?: number;
    topic?: string;
    ts?: number;
    ttl_ms?: number;
  };
  touch?: { key: string; kind: "SEEN" | "USED"; importance?: number };
  update?: { key: string; if_version: number; summary: string; reason?: string };
}

/** Strings to be among, or a number to reach. */
export interface Condition {
  field: string;
  in?: string[];
  gte?: number;
}
