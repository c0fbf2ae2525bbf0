// Command memsvc-conversation holds the scripted conversation of ../conversation.json and prints
// what was answered.
//
//	go run . ../conversation.json
//
// MEMSVC_NODES lists the nodes (host:port, by commas), MEMSVC_TOKEN is the token, MEMSVC_AGENT the
// agent in whose name it is held; each run needs a new one, since memories are known by their keys.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	memsvcv1 "example.com/memsvc-conversation/gen/memsvc/v1"
)

// Answer is what is printed of a step. Maps are printed with their keys in order.
type Answer = map[string]any

// Conversation is one script in one namespace.
type Conversation struct {
	script   *Script
	memory   *Memory
	agent    string
	ids      map[string]string // of memories, by their keys in the script
	keys     map[string]string // the other way round
	position string            // of the last change: reads wait for it
}

func (c *Conversation) hold(ctx context.Context, step *Step) (Answer, error) {
	calls := map[string]func(context.Context, *Step) (Answer, error){
		"write": c.write, "query": c.query, "browse": c.browse, "forget": c.forget, "burst": c.burst,
	}
	if step.Token != nil {
		ctx = WithToken(ctx, *step.Token)
	}
	if step.DeadlineMs != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*step.DeadlineMs)*time.Millisecond)
		defer cancel()
	}
	answer, err := calls[step.Call](ctx, step)
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		// Client and node both watch the deadline; only the node gives a reason.
		if refusal.Code == codes.DeadlineExceeded {
			refusal.Reason = ""
		}
		violations := []Answer{}
		for _, one := range refusal.Violations {
			violations = append(violations, Answer{"field": one.Field, "description": one.Description})
		}
		answer, err = Answer{"refused": Answer{
			"code": codeName(refusal.Code), "reason": refusal.Reason, "violations": violations,
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	answer["step"] = step.Name
	return answer, nil
}

func (c *Conversation) write(ctx context.Context, step *Step) (Answer, error) {
	items := step.Items
	if step.RepeatOf != "" {
		first := slices.IndexFunc(c.script.Steps, func(one Step) bool { return one.Name == step.RepeatOf })
		items = c.script.Steps[first].Items
	}
	request := &memsvcv1.WriteRequest{Namespace: c.namespace(step), RequestId: step.RequestID}
	var keys []string
	for _, one := range items {
		item, key := c.item(&one)
		request.Items = append(request.Items, item)
		keys = append(keys, key)
	}
	answer, err := c.memory.Write(ctx, request)
	if err != nil {
		return nil, err
	}
	c.position = answer.GetPosition()
	results := []Answer{}
	for i, result := range answer.GetResults() {
		c.ids[keys[i]], c.keys[result.GetId()] = result.GetId(), keys[i]
		results = append(results, Answer{
			"key":     keys[i],
			"outcome": strings.TrimPrefix(result.GetOutcome().String(), "OUTCOME_"),
			"status":  strings.TrimPrefix(result.GetStatus().String(), "STATUS_"),
			"version": result.GetVersion(),
		})
	}
	return Answer{"results": results, "replayed": answer.GetReplayed()}, nil
}

func (c *Conversation) query(ctx context.Context, step *Step) (Answer, error) {
	answer, err := c.memory.Query(ctx, c.search(step))
	if err != nil {
		return nil, err
	}
	hits := []Answer{}
	for _, hit := range answer.GetItems() {
		hits = append(hits, c.hit(hit))
	}
	return Answer{
		"mode":     strings.TrimPrefix(answer.GetMode().String(), "MODE_"),
		"degraded": answer.GetDegraded().GetLevel(),
		"hits":     hits,
	}, nil
}

func (c *Conversation) hit(hit *memsvcv1.Hit) Answer {
	told := Answer{
		"key":        c.keys[hit.GetId()],
		"summary":    hit.GetSummary(),
		"version":    hit.GetVersion(),
		"topic":      hit.GetMetadata().GetTopic(),
		"score":      fmt.Sprintf("%.4f", hit.GetScore()),
		"importance": fmt.Sprintf("%.4f", hit.GetImportanceStored()),
		"recalls":    hit.GetRecallCount(),
	}
	if hit.Similarity != nil {
		told["similarity"] = fmt.Sprintf("%.4f", hit.GetSimilarity())
	}
	if hit.GetContent() != "" {
		told["content"] = hit.GetContent()
	}
	return told
}

func (c *Conversation) browse(ctx context.Context, step *Step) (Answer, error) {
	request := c.search(step)
	request.Mode, request.TopK = memsvcv1.Mode_MODE_BROWSE, step.PageSize
	pages := [][]string{}
	for {
		answer, err := c.memory.Query(ctx, request)
		if err != nil {
			return nil, err
		}
		pages = append(pages, c.keysOf(answer))
		if answer.GetNextPageToken() == "" {
			return Answer{"pages": pages}, nil
		}
		request.PageToken = answer.GetNextPageToken()
	}
}

func (c *Conversation) forget(ctx context.Context, step *Step) (Answer, error) {
	answer, err := c.memory.Forget(ctx, &memsvcv1.ForgetRequest{
		Namespace:    c.namespace(step),
		RequestId:    step.RequestID,
		Ids:          c.idsOf(step.Keys),
		Filters:      filters(step.Filters),
		Mode:         memsvcv1.ForgetMode(memsvcv1.ForgetMode_value["FORGET_MODE_"+step.Mode]),
		Factor:       step.Factor,
		ValidateOnly: step.ValidateOnly,
	})
	if err != nil {
		return nil, err
	}
	c.position = answer.GetPosition()
	keys := []string{}
	for _, id := range answer.GetIds() {
		keys = append(keys, c.keys[id])
	}
	return Answer{
		"matched":  answer.GetMatched(),
		"changed":  answer.GetChanged(),
		"keys":     keys,
		"replayed": answer.GetReplayed(),
	}, nil
}

func (c *Conversation) burst(ctx context.Context, step *Step) (Answer, error) {
	var first []string
	alike := true
	for i := range step.Times {
		answer, err := c.memory.Query(ctx, c.search(step))
		if err != nil {
			return nil, err
		}
		found := c.keysOf(answer)
		if i == 0 {
			first = found
		}
		alike = alike && slices.Equal(found, first)
	}
	return Answer{"answered": step.Times, "alike": alike}, nil
}

func (c *Conversation) keysOf(answer *memsvcv1.QueryResponse) []string {
	keys := []string{}
	for _, hit := range answer.GetItems() {
		keys = append(keys, c.keys[hit.GetId()])
	}
	return keys
}

// codeName is the name that gRPC gives a code everywhere but in Go: NOT_FOUND, not NotFound.
func codeName(code codes.Code) string {
	var name strings.Builder
	for i, letter := range code.String() {
		if i > 0 && 'A' <= letter && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToUpper(name.String())
}

func run(path string) error {
	script, err := readScript(path)
	if err != nil {
		return err
	}
	agent := os.Getenv("MEMSVC_AGENT")
	if agent == "" {
		agent = fmt.Sprintf("go-%d", time.Now().UnixNano())
	}
	nodes := strings.Split(os.Getenv("MEMSVC_NODES"), ",")
	configs := filepath.Join(filepath.Dir(path), "service-config")
	memory, err := Connect(nodes, configs, os.Getenv("MEMSVC_TOKEN"))
	if err != nil {
		return err
	}
	defer memory.Close()
	conversation := &Conversation{
		script: script, memory: memory, agent: agent, ids: map[string]string{}, keys: map[string]string{},
	}
	lines := json.NewEncoder(os.Stdout)
	lines.SetEscapeHTML(false)
	for i := range script.Steps {
		answer, err := conversation.hold(context.Background(), &script.Steps[i])
		if err != nil {
			return fmt.Errorf("%s: %w", script.Steps[i].Name, err)
		}
		if err := lines.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: memsvc-conversation FILE")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
