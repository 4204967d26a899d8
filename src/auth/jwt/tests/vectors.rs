//! Signatures of `{"alg":...}` and `{"a":1}` by another implementation: signing and verifying with the same code could hide an
//! error in both.

/// The key of the RSA signatures.
const RSA: &str = r#"{"kty":"RSA","n":"u2T4PF1_yTMPt8QszscTYUd9uRa2JqyHo5wJGUQIY9yC9TiYV1N94BwJo5qzQte8SAHUL1eO_N3qSNs-TzFNZoa1ncCYJnUPx0XeEdt29UQMegQJNz4cJpZ4w2BLfM46D0VAC8kZA-PGkj-jSO8ESfPya3VUgIqZHMm1wA7aq3H--O2DbOn-eR19cGbKIA2iWzusCNkbE-lxhXHSy1iTuQ","e":"AQAB"}"#;

/// Algorithm, public key and signature.
pub const TEST_VECTORS: [(&str, &str, &str); 9] = [
    (
        "RS256",
        RSA,
        "Et4v-0hePEa6ykvm0HinoGeSfjdcy1xh5rukh6rlHnyNrvEZZP4i2prPOWQos1xc758m5H4U-4MIrtcqc7p0Vhuv3V_3PkQ1bo9JPbN6E2Q5pSLr7yTt3OedHvndZiuhn8NCgpj4rwI3Ciyl9NvmhDfloD5XABCFcTeoZqxuE8Kn4glpcRai_ir2yOovp-qBu91By0sAWKxxdahICG-fSw",
    ),
    (
        "RS384",
        RSA,
        "HHQ3oQqwxhFlTSA4LYUy5plV-HcEgb2mR9wTpeMthZPrZgmX9kJ1Da0n_CfBy9BFgls5-Cu0Wjp4pBLi8tQWJXsxkEM3W_JXMuZvGiF-cfFlfB8lZs7BqBVYp4WLWyQD5Zw38TbCNpwMNw56lvkf-qPfd72dBjxE1KMKphWQY_QOnM1Gx1HjV3i43WxcdkiN10VTex0NUMQFg70LguWx_Q",
    ),
    (
        "RS512",
        RSA,
        "Mwq8DBWxNOdp95am_LS2qHdIcxSWkqau4cw6Yk52hCjUBZ_L947KLRVNojjp6P2TLhiza1D9NeG9cyoR-a-_kjrpoX0L92D8CoOq3RaC6WWv-Kl6klbFMf7OKL0Ilu8vtBwu3kqUREGUkxwe43eYZLyzc7wF8Hm1Ar-vlEJW2xelLxXgTxp5m-qidv6SvHcVOQlO3T9S8DUiBIUCJTGLoQ",
    ),
    (
        "PS256",
        RSA,
        "e2aIKG4HkzWEytgU3dc6zWWaxIXUGltJZ83u587s9-1r2ieX965RAS508a6I-OZ2jozUWRQT-nMsLNc0baF06b5LKDBuhMTkYlxDepdzd94PeiAId09Y_DghfUk2fJWOXdAC4cOVdRiNrSM38YT5S_1IWdAGj4shU-O8z66EZg36Y6IlQ-4xUXmEmBIxUZo6Hz1KO_hv8j2Mb6GOJQiQZQ",
    ),
    (
        "PS384",
        RSA,
        "qW8-JtUOYltNUN3s0UteqMp597gN-8ZYlCunh4H8dr9MA3XEWjZyxziuWQfOrhTHybA3yqTy9HxQI1tWsKgZPZMXryCFfyb9YEnfWxuyvQOGbXMIHCc0ZE2qik6ouAD7jrYvD89U85HUQ_K1PfjGKqrIQpyY-Pil-5KIGACD7LUvf6PrNeMcj-3Lngn_ZDJ-xMZy20poFBkDIbplTTHPzA",
    ),
    (
        "PS512",
        RSA,
        "J7WPdZVJhtlrzT-N-FmeUomRHzYalBppO4yWJSMdZCGr3it2zGtVwkByKlthnOxzLbEhTmWJ9wBkWYhGKXqGQbBqLAR2L00CdIIM2RUYGANie4YBIBXZEM_V4B3lvGrDPSOBuj-zEgqZ47KhnArtvzSq5moWUvU9zx7kLco8yVLWCcKsRqIBuCTafSuInut1nG9gYkpcOxVT5NlxSMH3Ow",
    ),
    (
        "ES256",
        r#"{"kty":"EC","crv":"P-256","x":"CbvcyBKLK9aZ-z9ekmSu0FCe6RcXaXzzS4Hwnffb4kU","y":"5bQiEHElJdi3JrJ0bxQeVd8kAqGrp34MIMsswn-5PRE"}"#,
        "w0dv8ZneHDeC4KCCQx93Dl7o18EC3LPu-prhQ3kv_LnGaRq_ipdOPJULZvyppVzlIDVQ4yGwW_0sasWTfCVLAA",
    ),
    (
        "ES384",
        r#"{"kty":"EC","crv":"P-384","x":"kk1l9XyfMp8BMgHMpQrGmgG84GU-FLKXWFGvIHIdokmmpt9NJO9SmrZSEbRvjA_-","y":"OZk66tgcX9COu5QGuC8OE0DWHWBcXbI-XRN1aMTVWvEQfGtdA62Trgw8lpdrI7pR"}"#,
        "ytMyA377lN2PfTxKJPpft7H3LcJpU6Zb8QYGroLoeyaZjG61ixc_F3yxIcDaUNRGEw6ZU7qwo3AzVScfFQgu1ztwFBqd4JhBNMTIamAm3ZxKV-QP0DDeWwN8wFnbg_It",
    ),
    (
        "ES512",
        r#"{"kty":"EC","crv":"P-521","x":"AUVEEh821YcW2ZS9vXHA0i7HNmbWfqq3S6mr3f0CwldoUizYnM8eXQ6PuPXnJTSJBrik-lDQYDBnKUrpj7xhZtkY","y":"AI9b4h7DXERlFvJI0PZK_x5idp5vAbC82GmgmXmDSpL02zssAn7ab8SC56r-6KZhXMnnDRlj5Gmp08kY5Gy3EkDH"}"#,
        "AGOY0gSkXUjV2_rVITWhBfQ6o4ly7JEZw-I0SNa7fR7sxqmY2WlXYt16_QJiKUJNltxd6xRVsoteaSEsQmd0jsIxALvclrx_sIfijONXykZ3bmPpT4GMHw600FnrykWO_fVG7O3S15KQUIo6SeabzXzonLkIb7ANzfCj-DB9n7mT-iHL",
    ),
];
