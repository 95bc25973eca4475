package mcp

const (
	methodInitialize = "initialize"
	methodCancelled  = "notifications/cancelled"
	methodProgress   = "notifications/progress"
)

// MethodInfo is what the protocol says of a method, over all its revisions.
type MethodInfo struct {
	// FromClient and FromServer say who may send it.
	FromClient, FromServer bool
	// Notification says that it has no id; anything else is a request.
	Notification bool
	// NameParam is where the operation's name stands in params: "name",
	// "uri", "taskId", "ref", or "" for none.
	NameParam string
	// NameRequired says that a request without the name is malformed.
	NameRequired bool
	// ReadOnly says that repeating it changes nothing by protocol. It is not
	// a promise of the server.
	ReadOnly bool
}

// methods are those of all revisions from 2024-11-05 to 2026-07-28 and of the
// tasks extension.
var methods = map[string]MethodInfo{
	methodInitialize:                           {FromClient: true},
	"server/discover":                          {FromClient: true, ReadOnly: true},
	"ping":                                     {FromClient: true, FromServer: true, ReadOnly: true},
	"tools/list":                               {FromClient: true, ReadOnly: true},
	"tools/call":                               {FromClient: true, NameParam: "name", NameRequired: true},
	"resources/list":                           {FromClient: true, ReadOnly: true},
	"resources/templates/list":                 {FromClient: true, ReadOnly: true},
	"resources/read":                           {FromClient: true, NameParam: "uri", NameRequired: true, ReadOnly: true},
	"resources/subscribe":                      {FromClient: true, NameParam: "uri"},
	"resources/unsubscribe":                    {FromClient: true, NameParam: "uri"},
	"subscriptions/listen":                     {FromClient: true, ReadOnly: true},
	"prompts/list":                             {FromClient: true, ReadOnly: true},
	"prompts/get":                              {FromClient: true, NameParam: "name", NameRequired: true, ReadOnly: true},
	"completion/complete":                      {FromClient: true, NameParam: "ref", ReadOnly: true},
	"logging/setLevel":                         {FromClient: true},
	"sampling/createMessage":                   {FromServer: true},
	"elicitation/create":                       {FromServer: true},
	"roots/list":                               {FromServer: true, ReadOnly: true},
	"tasks/get":                                {FromClient: true, FromServer: true, NameParam: "taskId", ReadOnly: true},
	"tasks/result":                             {FromClient: true, FromServer: true, NameParam: "taskId", ReadOnly: true},
	"tasks/update":                             {FromClient: true, NameParam: "taskId"},
	"tasks/cancel":                             {FromClient: true, FromServer: true, NameParam: "taskId"},
	"tasks/list":                               {FromClient: true, FromServer: true, ReadOnly: true},
	"notifications/initialized":                {FromClient: true, Notification: true},
	methodCancelled:                            {FromClient: true, FromServer: true, Notification: true},
	methodProgress:                             {FromClient: true, FromServer: true, Notification: true},
	"notifications/roots/list_changed":         {FromClient: true, Notification: true},
	"notifications/message":                    {FromServer: true, Notification: true},
	"notifications/tools/list_changed":         {FromServer: true, Notification: true},
	"notifications/prompts/list_changed":       {FromServer: true, Notification: true},
	"notifications/resources/list_changed":     {FromServer: true, Notification: true},
	"notifications/resources/updated":          {FromServer: true, Notification: true, NameParam: "uri"},
	"notifications/subscriptions/acknowledged": {FromServer: true, Notification: true},
	"notifications/elicitation/complete":       {FromServer: true, Notification: true},
	"notifications/tasks/status":               {FromClient: true, FromServer: true, Notification: true, NameParam: "taskId"},
	"notifications/tasks":                      {FromServer: true, Notification: true, NameParam: "taskId"},
}

// Lookup returns what the protocol says of a method. Unknown methods and
// extensions are not in the table; they pass and are recorded as opaque.
func Lookup(method string) (MethodInfo, bool) {
	info, known := methods[method]
	return info, known
}
