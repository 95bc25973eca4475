// Preloaded into servers that offer no way to name the address they bind
// (server-everything listens on every interface): binds 127.0.0.1 instead.
'use strict';
const net = require('node:net');
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  if (/^\d+$/.test(String(port)) && typeof rest[0] !== 'string') {
    return listen.call(this, Number(port), '127.0.0.1', ...rest);
  }
  return listen.call(this, port, ...rest);
};
