package main

import (
	memsvcv1 "example.com/memsvc-conversation/gen/memsvc/v1"
)

func (c *Conversation) namespace(step *Step) *memsvcv1.Namespace {
	tenant := c.script.Tenant
	if step.Tenant != "" {
		tenant = step.Tenant
	}
	return &memsvcv1.Namespace{Tenant: tenant, Agent: c.agent, Session: c.script.Session}
}

// item is the message of one item of a write, and the key of its memory.
func (c *Conversation) item(item *Item) (*memsvcv1.WriteItem, string) {
	switch {
	case item.Touch != nil:
		touch := &memsvcv1.Touch{
			Id:         c.ids[item.Touch.Key],
			Importance: item.Touch.Importance,
			Kind:       memsvcv1.TouchKind(memsvcv1.TouchKind_value["TOUCH_KIND_"+item.Touch.Kind]),
		}
		return &memsvcv1.WriteItem{Item: &memsvcv1.WriteItem_Touch{Touch: touch}}, item.Touch.Key
	case item.Update != nil:
		update := &memsvcv1.Update{
			Id:        c.ids[item.Update.Key],
			IfVersion: item.Update.IfVersion,
			Summary:   &item.Update.Summary,
			Reason:    item.Update.Reason,
		}
		return &memsvcv1.WriteItem{Item: &memsvcv1.WriteItem_Update{Update: update}}, item.Update.Key
	default:
		memo := item.Memory
		memory := &memsvcv1.Memory{
			DedupKey: memo.Key,
			Content:  memo.Content,
			Summary:  memo.Summary,
			Vector:   vector(memo.Vector),
			Metadata: &memsvcv1.Metadata{Ts: memo.Ts, Importance: memo.Importance, Topic: memo.Topic},
			TtlMs:    memo.TTLMs,
		}
		return &memsvcv1.WriteItem{Item: &memsvcv1.WriteItem_Memory{Memory: memory}}, memo.Key
	}
}

func (c *Conversation) search(step *Step) *memsvcv1.QueryRequest {
	return &memsvcv1.QueryRequest{
		Namespace:   c.namespace(step),
		Vector:      vector(step.Vector),
		Text:        step.Text,
		Ids:         c.idsOf(step.Keys),
		TopK:        step.TopK,
		MinScore:    step.MinScore,
		Filters:     filters(step.Filters),
		Mode:        memsvcv1.Mode(memsvcv1.Mode_value["MODE_"+step.Mode]), // unknown: AUTO
		MinPosition: c.position,
		Include:     &memsvcv1.Include{Content: step.IncludeContent},
	}
}

func (c *Conversation) idsOf(keys []string) []string {
	var ids []string
	for _, key := range keys {
		ids = append(ids, c.ids[key])
	}
	return ids
}

func vector(numbers []float32) *memsvcv1.Vector {
	if numbers == nil {
		return nil
	}
	return &memsvcv1.Vector{Values: numbers}
}

// filters is true where all of the conditions are.
func filters(conditions []Filter) *memsvcv1.Filter {
	if conditions == nil {
		return nil
	}
	var all []*memsvcv1.Filter
	for _, one := range conditions {
		all = append(all, &memsvcv1.Filter{Node: &memsvcv1.Filter_Condition{Condition: condition(one)}})
	}
	return &memsvcv1.Filter{Node: &memsvcv1.Filter_AllOf{AllOf: &memsvcv1.FilterList{Filters: all}}}
}

func condition(one Filter) *memsvcv1.Condition {
	if one.In == nil {
		least := &memsvcv1.Value{Kind: &memsvcv1.Value_DoubleValue{DoubleValue: one.Gte}}
		return &memsvcv1.Condition{
			Field: one.Field,
			Test:  &memsvcv1.Condition_Range{Range: &memsvcv1.Range{Gte: least}},
		}
	}
	var values []*memsvcv1.Value
	for _, text := range one.In {
		values = append(values, &memsvcv1.Value{Kind: &memsvcv1.Value_StringValue{StringValue: text}})
	}
	return &memsvcv1.Condition{
		Field: one.Field,
		Test:  &memsvcv1.Condition_InValues{InValues: &memsvcv1.ValueList{Values: values}},
	}
}
