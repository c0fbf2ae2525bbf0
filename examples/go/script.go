package main

import (
	"encoding/json"
	"os"
)

// Script is the conversation as ../conversation.json has it.
type Script struct {
	Tenant  string `json:"tenant"`
	Session string `json:"session"`
	Steps   []Step `json:"steps"`
}

// Step is one call, or a few that belong together.
type Step struct {
	Name           string    `json:"step"`
	Call           string    `json:"call"`
	RequestID      string    `json:"request_id"`
	RepeatOf       string    `json:"repeat_of"`
	Items          []Item    `json:"items"`
	Text           string    `json:"text"`
	Vector         []float32 `json:"vector"`
	Keys           []string  `json:"keys"`
	Filters        []Filter  `json:"filters"`
	TopK           uint32    `json:"top_k"`
	MinScore       *float32  `json:"min_score"`
	Mode           string    `json:"mode"`
	PageSize       uint32    `json:"page_size"`
	IncludeContent bool      `json:"include_content"`
	Factor         *float32  `json:"factor"`
	ValidateOnly   bool      `json:"validate_only"`
	Times          int       `json:"times"`
	Tenant         string    `json:"tenant"`
	Token          *string   `json:"token"`
	DeadlineMs     *int64    `json:"deadline_ms"`
}

// Item is one of a write: exactly one is set.
type Item struct {
	Memory *Memo   `json:"memory"`
	Touch  *Touch  `json:"touch"`
	Update *Update `json:"update"`
}

// Memo is a new memory.
type Memo struct {
	Key        string    `json:"key"`
	Content    string    `json:"content"`
	Summary    string    `json:"summary"`
	Vector     []float32 `json:"vector"`
	Importance *float32  `json:"importance"`
	Topic      string    `json:"topic"`
	Ts         *int64    `json:"ts"`
	TTLMs      *int64    `json:"ttl_ms"`
}

// Touch says that a memory was seen or used again.
type Touch struct {
	Key        string   `json:"key"`
	Kind       string   `json:"kind"`
	Importance *float32 `json:"importance"`
}

// Update changes a memory.
type Update struct {
	Key       string `json:"key"`
	IfVersion uint32 `json:"if_version"`
	Summary   string `json:"summary"`
	Reason    string `json:"reason"`
}

// Filter is one condition: strings to be among, or a number to reach.
type Filter struct {
	Field string   `json:"field"`
	In    []string `json:"in"`
	Gte   float64  `json:"gte"`
}

func readScript(path string) (*Script, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	script := new(Script)
	return script, json.Unmarshal(text, script)
}
