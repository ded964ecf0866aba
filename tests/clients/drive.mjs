// The published clients, driven by lines of JSON: a request on stdin, its answer on stdout.
//
//   open      name, options, hook   a Shape over a ShapeStream, or the hook of @electric-sql/react
//   state     name                  rows, offset, handle, what the server answered
//   messages  name                  every message that came
//   snapshot  name, subset          requestSnapshot: its rows join the shape's
//   close     name                  no more requests

import { createInterface } from 'node:readline'
import { Shape, ShapeStream } from '@electric-sql/client'
import { getShape, getShapeStream, useShape } from '@electric-sql/react'
import { createElement } from 'react'
import { act, create } from 'react-test-renderer'

globalThis.IS_REACT_ACT_ENVIRONMENT = true
const opened = new Map()

class Opened {
  constructor(options, hook) {
    this.requests = []
    this.messages = []
    this.errors = []
    this.controller = new AbortController()
    const settings = {
      ...options,
      signal: this.controller.signal,
      fetchClient: (...request) => this.fetch(...request),
      onError: (error) => void this.errors.push(String(error)),
      backoffOptions: { initialDelay: 50, maxDelay: 200, multiplier: 1.5 },
    }
    if (hook) this.render(settings)
    else {
      this.stream = new ShapeStream(settings)
      this.shape = new Shape(this.stream)
    }
    this.stream.subscribe((messages) => void this.messages.push(...messages), () => {})
  }

  render(settings) {
    // The hook looks its stream up by these very options.
    this.stream = getShapeStream(settings)
    this.shape = getShape(this.stream)
    const Rows = () => {
      const { data } = useShape(settings)
      this.rendered = data
      return createElement('rows', { count: data.length })
    }
    act(() => void create(createElement(Rows)))
  }

  async fetch(url, init = {}) {
    const answer = await fetch(url, init)
    const { searchParams } = new URL(url)
    this.requests.push({
      method: init.method ?? 'GET',
      offset: searchParams.get('offset'),
      live: searchParams.get('live') === 'true',
      sse: searchParams.get('live_sse') === 'true',
      subset: [...searchParams.keys()].some((key) => key.startsWith('subset__')),
      type: answer.headers.get('content-type'),
      status: answer.status,
    })
    return answer
  }

  state() {
    return {
      rows: this.rendered ?? this.shape.currentRows,
      offset: this.stream.lastOffset,
      handle: this.stream.shapeHandle ?? null,
      up_to_date: this.shape.isUpToDate,
      requests: this.requests,
      errors: this.errors,
    }
  }
}

const requests = {
  open: ({ name, options, hook }) => void opened.set(name, new Opened(options, hook)),
  state: ({ name }) => opened.get(name).state(),
  messages: ({ name }) => opened.get(name).messages,
  snapshot: async ({ name, subset }) => void (await opened.get(name).shape.requestSnapshot(subset)),
  close: ({ name }) => void opened.get(name).controller.abort(),
}

const written = (_key, value) => (typeof value === 'bigint' ? value.toString() : value)

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  let answer
  try {
    let found
    // What React has to do since the last request is done before it is asked.
    await act(async () => {
      found = await requests[request.do](request)
    })
    answer = { result: found ?? null }
  } catch (error) {
    answer = { error: String(error?.stack ?? error) }
  }
  process.stdout.write(JSON.stringify(answer, written) + '\n')
}
process.exit(0)
