package redact_test

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

func profile(t testing.TB, keys ...string) *redact.Profile {
	t.Helper()
	p, err := redact.New(redact.Config{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestKeysThatHoldSecretsMatch(t *testing.T) {
	p := profile(t)
	for _, key := range []string{
		// the list itself
		"password", "token", "secret", "api_key", "apikey", "passwd", "bearer", "authorization", "cookie", "private_key", "client_secret",
		// words in any spelling
		"dbPassword", "db_password", "db-password", "DB_PASSWORD", "DBPassword", "db.password", "db password", "$password", "password1", "2password",
		"x-api-key", "X-API-Key", "apiKey", "APIKey", "XAPIKey", "API_KEY", "api.key", "apiKeyV2", "openai_api_key_2",
		"accessToken", "access_token", "id_token", "idToken", "X-Auth-Token", "tokenValue", "token_type", "oauth2Token", "oauth2token",
		"Authorization", "Proxy-Authorization", "Set-Cookie", "sessionCookie", "cookieJar",
		"privateKey", "PRIVATE-KEY", "private_key_pem", "clientSecret", "AWS_SECRET_ACCESS_KEY", "secret_name",
		"env[DB_PASSWORD]", "headers/authorization", "passWord", "pass_word",
		// glued
		"dbpassword", "accesstoken", "xapikey", "apikeyvalue", "mysecret", "secretkey", "clientsecret", "awssecretaccesskey",
		"privatekey", "privatekeypem", "sessioncookie", "passwordhash", "tokenstring", "tokensecret", "passwordsalt", "xapi-key",
		// plurals
		"passwords", "dbPasswords", "secrets", "cookies", "api_keys", "apiKeys", "apikeys", "private_keys", "client_secrets", "apiKEYs",
		"access_tokens", "refreshTokens", "authtokens", "accesstokens", "api_tokens", "tokens", "Tokens", "tokens2", "secretsManagerArn",
		// spellings that other readers fold
		"paſſword", "to\u212aen", "toKen", "ｐａｓｓｗｏｒｄ", "pass\u200bword", "PASSWORD\x00", "pass\u00adword",
		"max_tokens_secret", "secretary_password",
	} {
		if !p.MatchKey(key) {
			t.Errorf("%q passes", key)
		}
	}
}

func TestKeysThatHoldNoSecretPass(t *testing.T) {
	p := profile(t)
	for _, key := range []string{
		"", "_", "name", "path", "content", "key", "api", "client", "private", "pass", "auth", "tok", "passwor",
		// model tokens
		"max_tokens", "maxTokens", "max-tokens", "MAX_TOKENS", "maxtokens", "total_tokens", "totalTokens", "completion_tokens", "prompt_tokens",
		"cache_read_input_tokens", "max_completion_tokens", "maxOutputTokens", "thinkingTokens", "tokens_used", "tokensUsed", "tokensused",
		"tokens_per_second", "maxTokensToSample", "token_count", "tokenCount", "tokencount", "token_limit", "tokenBudget", "tokenUsage",
		// other words
		"secretary", "secretariat", "Secretaries", "undersecretary", "secretion", "secretive", "secretly", "secretary_name", "secretaryName",
		"tokenizer", "tokenize", "tokenized_text", "tokenization", "tokenise", "detokenize", "tokenizerConfig", "tokenizerconfig", "passwordless", "cookieless",
		// about secrets
		"cookies policy", "cookies_policy", "cookiesPolicy", "cookiespolicy", "cookie_policy", "cookieConsent", "password_policy", "passwordMinLength",
		"secrets_enabled", "password_required", "num_secrets", "max_passwords", "total_cookies", "secret_count_2",
		// a pattern across words
		"intoKenya", "into_kenya", "happi_keynote", "asap_i_key",
	} {
		if p.MatchKey(key) {
			t.Errorf("%q matches", key)
		}
	}
}

func TestKeyEdits(t *testing.T) {
	for _, c := range []struct {
		name            string
		edits           []string
		matches, passes []string
	}{
		{
			"added short pattern is found as a word only", []string{"+pin"},
			[]string{"pin", "PIN", "cardPin", "pin_code", "pins", "pin2", "password"}, []string{"shipping", "opinion", "pinned", "spin", "pin_count"},
		},
		{"bare name adds", []string{"passphrase"}, []string{"passphrase", "sshPassphrase", "sshpassphrase"}, []string{"phrase"}},
		{"removed pattern", []string{"-token"}, []string{"password", "token_secret"}, []string{"token", "access_token", "tokens"}},
		{"one spelling removes the others", []string{"-apikey"}, []string{"client_secret"}, []string{"api_key", "apikey", "x-api-key"}},
		{"exception for one key", []string{"-session_token"}, []string{"token", "access_token", "session_token_2"}, []string{"session_token", "sessionToken", "SESSION-TOKEN"}},
		{"exception for a key that passes anyway", []string{"-max_tokens"}, []string{"token"}, []string{"max_tokens"}},
		{"added after its removal", []string{"-token", "+token"}, []string{"token"}, nil},
		{"removed after its addition", []string{"+pin", "-pin"}, nil, []string{"pin"}},
		{"exception withdrawn", []string{"-access_token", "+access_token"}, []string{"access_token"}, nil},
		{"explicit plural", []string{"+tokens"}, []string{"tokens", "max_tokens"}, []string{"tokenizer"}},
		{"explicit measure", []string{"+token_count"}, []string{"token_count", "tokenCount", "token_counts"}, []string{"token_limit", "token_length"}},
		{"fragment", []string{"fragment:cred"}, []string{"cred", "credential", "sacred", "my-CREDs", "c_r_e_d"}, []string{"password_policy", "cre"}},
		{"fragment with sign", []string{"+fragment:pin", "-fragment:pin"}, nil, []string{"shipping", "pin"}},
		{"fragment and exception", []string{"fragment:auth", "-author"}, []string{"auth", "oauth", "authority"}, []string{"author", "Author"}},
		{"other scripts", []string{"+contraseña", "+密码", "+пароль"}, []string{"Contraseña", "miContraseña", "CONTRASEÑA", "密码", "ПАРОЛЬ", "мойпароль"}, []string{"contrase", "код", "码"}},
		{"pattern with digits", []string{"+oauth2"}, []string{"oauth2", "oauth_2", "OAuth2"}, []string{"oauth", "oauth3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := profile(t, c.edits...)
			for _, key := range c.matches {
				if !p.MatchKey(key) {
					t.Errorf("%q passes", key)
				}
			}
			for _, key := range c.passes {
				if p.MatchKey(key) {
					t.Errorf("%q matches", key)
				}
			}
		})
	}
}

func TestKeyEditsThatNameNothingAreRefused(t *testing.T) {
	for _, e := range []string{"", "+", "-", "fragment:", "+fragment:", "-fragment:", "+_", "- ", "-fragment:never_added"} {
		_, err := redact.New(redact.Config{Keys: []string{"+pin", e}})
		if err == nil || !strings.Contains(err.Error(), `"`+e+`"`) {
			t.Errorf("%q: %v", e, err)
		}
	}
}

func TestManyKeys(t *testing.T) {
	var edits []string
	for i := range 300 {
		// Letters of several scripts, more than the table of the automaton has columns for.
		edits = append(edits, "+"+string([]rune{rune(0x4E00 + 61*i), rune(0x0905 + i%40), rune(0x1200 + 8*(i%40)), 'q'}))
	}
	p := profile(t, edits...)
	for _, e := range edits {
		if !p.MatchKey(e[1:]) || !p.MatchKey("My "+e[1:]+" 2") || p.MatchKey(e[1:len(e)-1]) {
			t.Errorf("%q", e)
		}
	}
	if !p.MatchKey("password") || p.MatchKey("q") {
		t.Error("the default list is disturbed")
	}
}

func TestDefaultKeysMatchTheirOwnProfile(t *testing.T) {
	p := profile(t)
	for _, key := range redact.DefaultKeys() {
		if !p.MatchKey(key) {
			t.Errorf("%q passes", key)
		}
	}
}

func TestAProfileThatIsOffMatchesNothing(t *testing.T) {
	if _, err := redact.New(redact.Config{Off: true, Keys: []string{"+pin"}}); err == nil {
		t.Error("keys beside off are accepted")
	}
	p, err := redact.New(redact.Config{Off: true})
	if err != nil {
		t.Fatal(err)
	}
	if p.On() || p.MatchKey("password") {
		t.Error("it is on")
	}
	if out, changed, err := p.Redact([]byte(`{"password":1}`)); out != nil || changed || err != nil {
		t.Errorf("%s %v %v", out, changed, err)
	}
}
