package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // without it healthCheckConfig has no effect
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	memsvcv1 "example.com/memsvc-conversation/gen/memsvc/v1"
)

const (
	readTimeout   = 5 * time.Second // of one attempt, unless the context has a deadline
	changeTimeout = 10 * time.Second
	attempts      = 8
	longestPause  = 30 * time.Second // who is asked to wait longer is told instead
	tokenKey      = "x-memory-token"
)

// Memory makes the four calls over two connections: one for reads, at any node that is fit, and
// one for changes, at the primary. A change must have a request_id, since it may be sent again.
type Memory struct {
	reads, changes *grpc.ClientConn
	query          memsvcv1.MemoryServiceClient
	change         memsvcv1.MemoryServiceClient
}

// Connect prepares connections to all nodes; the service configs in the folder say which of them
// are asked. Nothing is sent yet.
func Connect(nodes []string, configs, token string) (*Memory, error) {
	reads, err := connect(nodes, filepath.Join(configs, "reads.json"), token, readTimeout)
	if err != nil {
		return nil, err
	}
	changes, err := connect(nodes, filepath.Join(configs, "changes.json"), token, changeTimeout)
	if err != nil {
		return nil, errors.Join(err, reads.Close())
	}
	return &Memory{
		reads:   reads,
		changes: changes,
		query:   memsvcv1.NewMemoryServiceClient(reads),
		change:  memsvcv1.NewMemoryServiceClient(changes),
	}, nil
}

func connect(nodes []string, configFile, token string, timeout time.Duration) (*grpc.ClientConn, error) {
	serviceConfig, err := os.ReadFile(configFile)
	if err != nil {
		return nil, err
	}
	// A DNS name of all nodes does as well, without the resolver: dns:///memory.internal:8848.
	list := manual.NewBuilderWithScheme("nodes")
	var endpoints []resolver.Endpoint
	for _, node := range nodes {
		endpoints = append(endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: node}}})
	}
	list.InitialState(resolver.State{Endpoints: endpoints})
	return grpc.NewClient("nodes:///memsvc",
		grpc.WithResolvers(list),
		grpc.WithDefaultServiceConfig(string(serviceConfig)),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // TLS: credentials.NewTLS
		// A node that is back is noticed within a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithChainUnaryInterceptor(retry, deadline(timeout), authenticate(token)),
	)
}

// Query asks any node that is fit for reads.
func (m *Memory) Query(ctx context.Context, request *memsvcv1.QueryRequest) (*memsvcv1.QueryResponse, error) {
	return m.query.Query(ctx, request)
}

// Write asks the primary.
func (m *Memory) Write(ctx context.Context, request *memsvcv1.WriteRequest) (*memsvcv1.WriteResponse, error) {
	return m.change.Write(ctx, request)
}

// Forget asks the primary.
func (m *Memory) Forget(ctx context.Context, request *memsvcv1.ForgetRequest) (*memsvcv1.ForgetResponse, error) {
	return m.change.Forget(ctx, request)
}

// Close ends the connections.
func (m *Memory) Close() error {
	return errors.Join(m.reads.Close(), m.changes.Close())
}

// WithToken has calls made with another token than that of the connection.
func WithToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, tokenKey, token)
}

func authenticate(token string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if sent, _ := metadata.FromOutgoingContext(ctx); len(sent.Get(tokenKey)) == 0 {
			ctx = WithToken(ctx, token)
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
}

func deadline(timeout time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if _, has := ctx.Deadline(); !has {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
}

// retry sends a call again when the node said after what time that may help.
func retry(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for attempt := 1; ; attempt++ {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if err == nil {
			return nil
		}
		refusal := RefusalOf(err)
		pause, may := refusal.Pause()
		if !may || attempt == attempts {
			return refusal
		}
		pause += time.Duration(rand.Int64N(int64(pause)/4 + 1)) // callers that were refused together come apart
		fmt.Fprintf(os.Stderr, "%s: again in %s\n", refusal.Reason, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return refusal
		}
	}
}

// Violation is one field that is wrong.
type Violation struct {
	Field, Description string
}

// Refusal is what a refused call said.
type Refusal struct {
	Code       codes.Code
	Message    string
	Reason     string
	Violations []Violation
	RetryAfter time.Duration // 0: the node gave none
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (%s): %s", r.Code, r.Reason, r.Message)
}

// RefusalOf reads the google.rpc details of an error.
func RefusalOf(err error) *Refusal {
	said := status.Convert(err)
	refusal := &Refusal{Code: said.Code(), Message: said.Message()}
	for _, detail := range said.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			refusal.Reason = detail.GetReason()
		case *errdetails.BadRequest:
			for _, one := range detail.GetFieldViolations() {
				refusal.Violations = append(refusal.Violations, Violation{one.GetField(), one.GetDescription()})
			}
		case *errdetails.RetryInfo:
			refusal.RetryAfter = detail.GetRetryDelay().AsDuration()
		}
	}
	return refusal
}

// Pause tells after what time the same call may be sent again, and whether that can help.
func (r *Refusal) Pause() (time.Duration, bool) {
	switch {
	case r.RetryAfter > 0:
		return r.RetryAfter, r.RetryAfter <= longestPause
	case r.Reason == "NOT_PRIMARY": // a switch-over: the connection finds the new primary within a second
		return 200 * time.Millisecond, true
	default:
		return 0, false
	}
}
